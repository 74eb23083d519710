#!/usr/bin/env bash
# torch_example_test.sh EXAMPLES [MPIEXEC]: checks the losses of the LibTorch example. Up to rounding, they must equal
# the losses of LibTorch without Aliquot. They must be bitwise identical at every ZeRO stage,
# on threads and under mpirun.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
program=$1/transformer_torch mpiexec=${2:-}

# losses COMMAND...: prints the lines of the command's output that report a step.
losses() { "$@" | grep '^step'; }
# near WHAT FILE FILE: checks that each file has 6 losses and that the losses differ by rounding only.
near() {
  paste "$2" "$3" | awk -v what="$1" '{ d = $4 - $8; if (d < 0) d = -d; if (!($4 > 0 && d < 1e-4 * $4)) { print what ": " $0; bad = 1 } }
    END { exit bad || NR != 6 }' || failures=$((failures + 1))
}
same() { cmp -s "$2" "$3" || { echo "$1: $(diff "$2" "$3" | head -4)" && failures=$((failures + 1)); }; }

losses "$program" 0 0 6 32 2 >"$scratch/alone"
for ranks in 1 2; do
  losses "$program" $ranks 0 6 32 2 >"$scratch/stage0"
  near "LibTorch without Aliquot against $ranks ranks" "$scratch/alone" "$scratch/stage0"
  for stage in 1 2 3; do
    losses "$program" $ranks $stage 6 32 2 >"$scratch/stage"
    same "$ranks ranks, ZeRO stage $stage against 0" "$scratch/stage0" "$scratch/stage"
  done
done
if [ -n "$mpiexec" ]; then
  losses "$mpiexec" -n 2 --oversubscribe "$program" 1 3 6 32 2 >"$scratch/processes"
  same "threads against processes" "$scratch/stage" "$scratch/processes"
fi
expect fail "zero_stage is 5" "$program" 2 5
exit $((failures > 0))
