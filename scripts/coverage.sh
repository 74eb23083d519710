#!/usr/bin/env bash
# scripts/coverage.sh [--report]
# Builds build-coverage/, runs the test suite there, and prints the number of lines that tests reach, by folder. Then
# prints the throw statements that no test reaches, and fails if there are any. It ignores those that
# tests/unreached_throws.txt lists as unreachable, with reasons. Writes two files to build-coverage/: unreached.txt has
# the unreached lines, and errors.md has each throw statement with its exit code and a test that reaches it. --report
# reads the results of the last run again. GPU and LibTorch code is excluded.
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

# Prints the output of gcov for each object file of this project.
all_lines() {
  find "$folder" -name '*.gcno' ! -path "$folder/tests/*" -print0 | sort -z |
    xargs -0 -r gcov --stdout --relative-only --source-prefix "$PWD" 2>/dev/null
}

# throws: converts each line "TEST OBJECT ADDRESS" of the log to "TEST FILE LINE".
throws() {
  local object
  sort -u "$log" >"$folder/throws.sorted"
  cut -d ' ' -f 2 "$folder/throws.sorted" | sort -u | while read -r object; do
    if [[ $object != "$PWD/$folder/"* ]] || [ ! -f "$object" ]; then continue; fi
    awk -v object="$object" '$2 == object { print $1, $3 }' "$folder/throws.sorted" >"$folder/throws.object"
    cut -d ' ' -f 2 "$folder/throws.object" | addr2line -e "$object" |
      sed -E "s|^$PWD/||; s| \(discriminator.*||; s|:([0-9?]+)\$| \1|" |
      paste -d ' ' <(cut -d ' ' -f 1 "$folder/throws.object") -
  done
}

status=0
if [ -n "$run" ]; then run_suite || status=$?; fi
if [ ! -s "$log" ]; then fail 1 "$log is missing or empty: run this script without --report first"; fi
all_lines | awk -f scripts/coverage/lines.awk -v unhit="$folder/unreached.txt"
throws >"$folder/throws.txt"
mapfile -t sources < <(git ls-files -- 'kernels/*.cpp' 'kernels/*.h' 'sharding/*.cpp' 'sharding/*.h' \
  'optim/*.cpp' 'optim/*.h' 'checkpoint/*.cpp' 'checkpoint/*.h' \
  'engine/*.cpp' 'engine/*.h' 'capi/*.cpp' 'capi/*.h' 'apps/*.cpp' 'apps/*.h' |
  grep -vE '_(cuda|nccl)[_.]|^apps/examples/')
echo
awk -f scripts/coverage/throws.awk -v table="$folder/errors.md" \
  "$folder/throws.txt" tests/unreached_throws.txt "${sources[@]}" || status=1
if [ $status -ne 0 ]; then fail 1 "a test failed, or no test reaches a throwing statement (see above)"; fi
