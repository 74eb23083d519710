#!/usr/bin/env bash
# scripts/test.sh [--long] [--with-torch]
# Installs what is missing, builds in build/, and runs every test this machine can run; says at the end what it skipped and
# why. --long adds the tests labelled long and the whole suite under the sanitizers (build-asan/, build-ubsan/, build-tsan/).
# --with-torch adds comparisons with PyTorch, by the python that ALIQUOT_PYTHON names (python3 unless set), which must have
# torch: make a virtual environment for it, outside this tree, with python3 -m venv and pip install torch.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

long=
with_torch=
for argument in "$@"; do
  case $argument in
    --long) long=1 ;;
    --with-torch) with_torch=1 ;;
    --help | -h) usage && exit ;;
    *) fail 1 "unknown option $argument (see --help)" ;;
  esac
done

# Tests run one a core; those about threads or ranks ask for theirs by name, and idle OpenMP threads must not spin meanwhile.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
build_seconds=0
test_seconds=0
failed=()
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# timed VARIABLE COMMAND...: runs it and adds its seconds to the variable.
timed() {
  local -n total=$1
  local started=$SECONDS status=0
  shift
  "$@" || status=$?
  total=$((total + SECONDS - started))
  return $status
}

# run_suite TEST_PRESET BUILD_PRESET [COMMAND...]: ctest, under COMMAND if given.
run_suite() {
  local name=$1 folder
  folder=$(build_folder "$2")
  shift 2
  rm -rf "$folder/Testing/cases"
  "$@" ctest --preset "$name" --no-tests=error -j "$(core_count)" 2>&1 | tee "$results/$name.log" || failed+=("$name")
  cat "$folder"/Testing/cases/*.xml >"$results/$name.xml" 2>/dev/null || true
}

run_sanitized() {
  local preset=$1 fixed=()
  # The thread sanitizer wants its addresses where they always were; a kernel that scatters them widely breaks it.
  if [ "$preset" = tsan ] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
  if ! timed build_seconds build "$preset"; then
    failed+=("$preset")
    return
  fi
  timed test_seconds run_suite "$preset" "$preset" "${fixed[@]}"
}

# What this machine lacks, whether or not a test asked for it.
lacks() {
  sed -n 's/^\([^|]*\)|no|/  no \1 in this build: /p' build/features.txt
  if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then echo "  no GPU here: what runs on one was not run"; fi
  if ! unshare --net true 2>/dev/null; then echo "  no network namespaces here: they need root"; fi
  if [ -z "$with_torch" ]; then echo "  comparison with PyTorch: it runs with --with-torch"; fi
  if [ -z "$long" ]; then echo "  long tests and sanitizers: they run with --long"; fi
}

compare_with_torch() {
  local status=0
  echo
  "$python" tests/optim/compare_torch.py build/tests/optim/optim_trajectory || status=$?
  if [ $status -ne 0 ]; then failed+=("comparison with PyTorch"); fi
}

python=${ALIQUOT_PYTHON:-python3}
if [ -n "$with_torch" ] && ! "$python" -c 'import torch' 2>/dev/null; then
  fail 2 "$python has no torch; run it as ALIQUOT_PYTHON=FOLDER/bin/python scripts/test.sh --with-torch after python3 -m venv FOLDER and FOLDER/bin/pip install torch"
fi
scripts/setup.sh
timed build_seconds build release || fail 1 "the build failed"
timed test_seconds run_suite release release
if [ -n "$with_torch" ]; then timed test_seconds compare_with_torch; fi
if [ -n "$long" ]; then
  timed test_seconds run_suite long release
  for preset in asan ubsan tsan; do run_sanitized "$preset"; done
fi

echo
echo "Not run here, and why"
lacks
for log in "$results"/*.log; do
  printf '\nThe suite %s: ' "$(basename "$log" .log)"
  awk -f scripts/cases.awk "${log%.log}.xml"
  sed -n '/tests passed, /,$p' "$log"
done
echo
echo "build $build_seconds s, tests $test_seconds s"
if [ ${#failed[@]} -gt 0 ]; then fail 1 "failed: ${failed[*]}"; fi
