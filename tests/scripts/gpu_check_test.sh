#!/usr/bin/env bash
# Checks that gpu_check.sh runs all its steps, whatever they print and even if one fails. Small scripts simulate the
# packed programs and the tools of a GPU machine.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

mkdir -p "$scratch/scripts" "$scratch/.device/bin" "$scratch/bin"
cp "$top"/scripts/{gpu_check,lib}.sh "$scratch/scripts/"
# program NAME STATUS LINE: creates a program that prints the line and exits with the status.
program() {
  printf '#!/bin/sh\necho "%s"\nexit %s\n' "$3" "$2" >"$scratch/$1"
  chmod +x "$scratch/$1"
}
program bin/nvidia-smi 0 "a GPU"
program bin/compute-sanitizer 0 "nothing is checked here"
program .device/bin/a_silent_test 0 "neither word"
program .device/bin/kernels_test 0 "[  PASSED  ] 7 tests."
program .device/bin/kernels_bench 0 "a table"
export OUT=$scratch/out
PATH=$scratch/bin:$PATH

expect pass "bench kernels" "$scratch/scripts/gpu_check.sh"
expect pass "a_silent_test" cat "$OUT/summary.txt"
expect pass "[ PASSED ] 7 tests." cat "$OUT/summary.txt"
expect pass "racecheck kernels_test" cat "$OUT/summary.txt"
program .device/bin/a_silent_test 1 "it crashed"
expect fail "1 of the steps above failed" "$scratch/scripts/gpu_check.sh" QUICK
expect pass "kernels_test" cat "$OUT/summary.txt"
exit $((failures > 0))
