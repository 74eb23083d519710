#!/usr/bin/env bash
# cuda_example_test.sh EXAMPLES [SIMULATED]: checks that the CUDA transformer trains like the C transformer, and gives
# equal bits at every ZeRO stage. EXAMPLES and SIMULATED are folders of programs; SIMULATED has builds for the simulated
# GPU. Without a GPU, the programs in EXAMPLES must report the reason.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
examples=$1 simulated=${2:-}

# same WHAT FILE FILE: checks that the files are equal.
same() { cmp -s "$2" "$3" || { echo "$1: $(diff "$2" "$3" | head -4)" && failures=$((failures + 1)); }; }
# near WHAT FILE FILE: checks that the losses in the files differ by at most the relative tolerance $off.
near() {
  paste "$2" "$3" | awk -v what="$1" -v off="$off" '{ d = $4 - $8; if (d < 0) d = -d; if (!($4 > 0 && d <= off * $4)) { print what ": " $0; bad = 1 } }
    END { exit bad || NR == 0 }' || failures=$((failures + 1))
}

# trains OFF ALONE SHARDED: compares the CUDA programs ALONE and SHARDED with the C programs. OFF is the relative
# tolerance.
trains() {
  local off=$1 alone=$2 sharded=$3 ranks stage
  "$examples/transformer" 4 2 >"$scratch/host"
  "$alone" 4 2 >"$scratch/alone"
  near "the CUDA transformer against the C transformer" "$scratch/host" "$scratch/alone"
  "$sharded" 4 2 1 1 >"$scratch/stage"
  same "1 rank, ZeRO stage 1 against the unsharded transformer" "$scratch/alone" "$scratch/stage"
  for ranks in 1 2 4; do
    "$examples/transformer_sharded" 4 1 $ranks 0 >"$scratch/host"
    for stage in 0 1 2 3; do
      "$sharded" 4 1 $ranks $stage >"$scratch/stage$stage"
      same "$ranks ranks, ZeRO stage $stage against 0" "$scratch/stage0" "$scratch/stage$stage"
    done
    near "$ranks CUDA ranks against $ranks host ranks" "$scratch/host" "$scratch/stage0"
  done
}

# Wrapping the transformer adds at most 40 lines. It changes no kernel: both programs include the same header of
# kernels.
wraps_in_few_lines() {
  local folder=$top/apps/examples program added
  added=$({ diff "$folder/transformer_cuda.cu" "$folder/transformer_cuda_sharded.cu" || true; } | grep -c '^>')
  echo "transformer_cuda: $added lines added"
  if [ "$added" -gt 40 ]; then echo "wrapping transformer_cuda adds $added lines: expected at most 40" && failures=$((failures + 1)); fi
  for program in transformer_cuda transformer_cuda_sharded; do
    expect pass "" grep -qxF '#include "transformer_kernels_cuda.h"' "$folder/$program.cu"
    expect fail "" grep __global__.*linear "$folder/$program.cu"
  done
  expect pass "" grep -q '^__global__ static void linear(' "$folder/transformer_kernels_cuda.h"
  expect fail "" grep -i aliquot "$folder/transformer_kernels_cuda.h"
}

# Checks that the program contains every line that the section "On a GPU" of docs/wrapping.md quotes.
guide_quotes_it() {
  local line quoted=0
  while read -r line; do
    quoted=$((quoted + 1))
    expect pass "" grep -qF "$line" "$top/apps/examples/transformer_cuda_sharded.cu"
  done < <(awk '/^## / { on = $0 == "## On a GPU" } on && sub(/^    /, "")' "$top/docs/wrapping.md")
  if [ "$quoted" -lt 3 ]; then echo "docs/wrapping.md quotes $quoted lines of the program: expected 3 or more" && failures=$((failures + 1)); fi
}

wraps_in_few_lines
guide_quotes_it
if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  # A GPU sums in a different order and has a different exponential function.
  trains 1e-4 "$examples/transformer_cuda" "$examples/transformer_cuda_sharded"
else
  expect fail "transformer_cuda: CUDA driver version is insufficient" "$examples/transformer_cuda"
  expect fail "the GPU driver is missing, or older than this build needs" "$examples/transformer_cuda_sharded"
fi
if [ -n "$simulated" ]; then trains 0 "$simulated/transformer_cuda_simulated" "$simulated/transformer_cuda_sharded_simulated"; fi
exit $((failures > 0))
