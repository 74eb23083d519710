#!/usr/bin/env bash
# scripts/test.sh [--long] [--with-torch]
# Installs missing packages, builds in build/, and runs every test that this machine can run. At the end it prints what
# it skipped, and why, and the ten slowest tests.
#   --long        adds the tests labelled long, the suite under sanitizers (build-asan/, which includes undefined
#                 behaviour, and build-tsan/), and scripts/analyse.sh if its tools are installed
#   --with-torch  installs LibTorch with apt, and adds the tests of LibTorch modules and comparisons with PyTorch. They
#                 use the Python that ALIQUOT_PYTHON names, or else create a virtual environment in the user's cache
#                 folder on first use, with torch from PyPI (several GB). With --long the tests of LibTorch modules also
#                 run in build-torch/, with the LibTorch of that Python
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

# Tests run in parallel, one per core, so idle OpenMP threads must not spin. Tests of threads or ranks set their own
# thread counts.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
build_seconds=0
test_seconds=0
failed=()
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# timed VARIABLE COMMAND...: runs the command and adds its duration in seconds to the variable.
timed() {
  local -n total=$1
  local started=$SECONDS status=0
  shift
  "$@" || status=$?
  total=$((total + SECONDS - started))
  return $status
}

# run_suite TEST_PRESET BUILD_PRESET [COMMAND...]: runs ctest, through COMMAND if given. One more test runs than there
# are cores, because many tests wait for time limits, disks or launchers.
run_suite() {
  local name=$1 folder
  folder=$(build_folder "$2")
  shift 2
  rm -rf "$folder/Testing/cases"
  "$@" ctest --preset "$name" --no-tests=error -j "$(($(core_count) + 1))" 2>&1 | tee "$results/$name.log" || failed+=("$name")
  cat "$folder"/Testing/cases/*.xml >"$results/$name.xml" 2>/dev/null || true
}

run_sanitized() {
  local preset=$1 fixed=()
  # The thread sanitizer needs fixed address ranges and fails on kernels with strong address randomization.
  if [ "$preset" = tsan ] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
  if ! timed build_seconds build "$preset"; then
    failed+=("$preset")
    return
  fi
  timed test_seconds run_suite "$preset" "$preset" "${fixed[@]}"
}

has_analysers() { command -v cppcheck >/dev/null && command -v clang-tidy-14 >/dev/null; }

# Prints the reasons for tests that ctest does not list as skipped: parts that the build lacks, devices that this
# machine lacks, and options that were not given.
lacks() {
  sed -n 's/^\([^|]*\)|no|/  no \1 in this build: /p' build/features.txt
  if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then echo "  GPU tests: this machine has no GPU"; fi
  scripts/cluster.sh true 2>&1 | sed -n 's/^cluster.sh: /  /p' || true
  if [ -z "$with_torch" ]; then echo "  comparison with PyTorch: requires --with-torch"; fi
  if [ -z "$long" ]; then
    echo "  long tests, sanitizers, static analysis: require --long"
  elif ! has_analysers; then
    echo "  static analysis: its tools are missing; scripts/setup.sh --dev installs them"
  fi
}

# compare_with NAME SCRIPT PROGRAM: runs a comparison script. Exit code 77 of the script means that a Python package is
# missing.
compare_with() {
  local status=0
  echo
  "$python" "$2" "$3" || status=$?
  if [ $status -ne 0 ] && [ $status -ne 77 ]; then failed+=("comparison with $1"); fi
}

compare_with_torch() {
  compare_with PyTorch tests/optim/compare_torch.py build/tests/optim/optim_trajectory
  compare_with transformers tests/apps/models/compare_transformers.py build/aliquot
  compare_with PEFT tests/apps/models/compare_peft.py build/aliquot
}

# Builds the tests of LibTorch modules with the LibTorch of PyPI's torch, and runs them.
test_newer_libtorch() {
  local folder
  folder=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  if ! ALIQUOT_CMAKE_ARGS="${ALIQUOT_CMAKE_ARGS:-} -DLibTorch_ROOT=$folder" timed build_seconds build torch \
    libtorch_sharded_module_test libtorch_module_use_test libtorch_checking_mode_test example_transformer_torch; then
    failed+=("torch")
    return
  fi
  timed test_seconds run_suite torch torch
}

if [ -n "$with_torch" ]; then
  scripts/setup.sh --torch
  python=$(torch_python)
  ALIQUOT_CMAKE_ARGS="${ALIQUOT_CMAKE_ARGS:-} -DALIQUOT_TORCH=ON"
  export ALIQUOT_CMAKE_ARGS
fi
scripts/setup.sh
timed build_seconds build release || fail 1 "the build failed"
timed test_seconds run_suite release release
if [ -n "$with_torch" ]; then timed test_seconds compare_with_torch; fi
if [ -n "$long" ]; then
  timed test_seconds run_suite long release
  if [ -n "$with_torch" ]; then test_newer_libtorch; fi
  for preset in asan tsan; do run_sanitized "$preset"; done
  if has_analysers; then timed test_seconds scripts/analyse.sh || failed+=("static analysis"); fi
fi

echo
echo "Skipped, with the reason:"
lacks
for log in "$results"/*.log; do
  printf '\nThe suite %s: ' "$(basename "$log" .log)"
  awk -f scripts/cases.awk "${log%.log}.xml"
  sed -n '/tests passed, /,$p' "$log"
  awk -f scripts/slowest.awk "$log"
done
echo
echo "build $build_seconds s, tests $test_seconds s"
if [ ${#failed[@]} -gt 0 ]; then fail 1 "failed: ${failed[*]}"; fi
