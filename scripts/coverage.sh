#!/usr/bin/env bash
# scripts/coverage.sh [--report]
# Builds build-coverage/, runs the suite there, and prints how many lines of each folder it reached; then which of the
# places that throw no test comes to. tests/unreached_throws.txt names those that none can, each with a reason; any other is
# a failure. Left in build-coverage/: unreached.txt, the lines; errors.md, every place that throws, with its exit code and a
# test that comes there. --report runs nothing, and reads again what the last run left. What needs a GPU or LibTorch is left out.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

run=1
for argument in "$@"; do
  case $argument in
    --report) run= ;;
    --help | -h) usage && exit ;;
    *) fail 1 "unknown option $argument (see --help)" ;;
  esac
done
folder=$(build_folder coverage)
log=$PWD/$folder/throws.log
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

run_suite() {
  build coverage || fail 1 "the build failed"
  find "$folder" -name '*.gcda' -delete
  rm -f "$log"
  LD_PRELOAD=$PWD/$folder/tests/support/libthrow_log.so ALIQUOT_THROW_LOG=$log \
    ctest --preset coverage --no-tests=error -j "$(core_count)"
}

# What gcov says of every object of ours.
all_lines() {
  find "$folder" -name '*.gcno' ! -path "$folder/tests/*" -print0 | sort -z |
    xargs -0 -r gcov --stdout --relative-only --source-prefix "$PWD" 2>/dev/null
}

# throws: of each line of the log "TEST OBJECT PLACE", the source: "TEST FILE LINE".
throws() {
  local object
  sort -u "$log" >"$folder/throws.sorted"
  cut -d ' ' -f 2 "$folder/throws.sorted" | sort -u | while read -r object; do
    if [[ $object != "$PWD/$folder/"* ]] || [ ! -f "$object" ]; then continue; fi
    awk -v object="$object" '$2 == object { print $1, $3 }' "$folder/throws.sorted" >"$folder/throws.object"
    cut -d ' ' -f 2 "$folder/throws.object" | addr2line -e "$object" |
      sed -E "s|^$PWD/||; s| \(discriminator.*||; s|:([0-9?]+)\$| \1|" | paste -d ' ' <(cut -d ' ' -f 1 "$folder/throws.object") -
  done
}

status=0
if [ -n "$run" ]; then run_suite || status=$?; fi
if [ ! -s "$log" ]; then fail 1 "there is nothing to report: run it without --report"; fi
all_lines | awk -f scripts/coverage/lines.awk -v unhit="$folder/unreached.txt"
throws >"$folder/throws.txt"
mapfile -t sources < <(git ls-files -- 'kernels/*.cpp' 'kernels/*.h' 'sharding/*.cpp' 'sharding/*.h' 'optim/*.cpp' 'optim/*.h' \
  'checkpoint/*.cpp' 'checkpoint/*.h' 'engine/*.cpp' 'engine/*.h' 'capi/*.cpp' 'capi/*.h' 'apps/*.cpp' 'apps/*.h' |
  grep -vE '_(cuda|nccl)[_.]|^apps/examples/')
echo
awk -f scripts/coverage/throws.awk -v table="$folder/errors.md" "$folder/throws.txt" tests/unreached_throws.txt "${sources[@]}" || status=1
if [ $status -ne 0 ]; then fail 1 "a test failed, or a place that throws is reached by none"; fi
