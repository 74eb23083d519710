#!/usr/bin/env bash
# gpu_check_on_simulated_gpus.sh ALIQUOT KERNELS_TEST ENGINE_TEST: runs scripts/gpu_check.sh with programs for simulated
# GPUs in place of packed ones. They run train_on_gpus.sh, some cases of the tests, and training. A substitute for
# nvidia-smi reports two GPUs.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"

mkdir -p "$scratch"/{.device/bin,scripts,bench,tools,tests/apps/train}
cp "$top"/scripts/{gpu_check,lib}.sh "$scratch/scripts/"
cp "$top"/bench/training_{gpu,torch}.py "$scratch/bench/"
cp "$top/tests/apps/train/train_on_gpus.sh" "$scratch/tests/apps/train/"
ln -s "$(realpath "$1")" "$scratch/.device/bin/aliquot"
ln -s "$(realpath "$2")" "$scratch/.device/bin/kernels_test"
ln -s "$(realpath "$3")" "$scratch/.device/bin/engine_on_gpu_cuda_test"
printf '#!/bin/sh\necho "simulated GPU 0"\necho "simulated GPU 1"\n' >"$scratch/tools/nvidia-smi"
chmod +x "$scratch/tools/nvidia-smi"

export OUT=$scratch/out PATH=$scratch/tools:$PATH ALIQUOT_GPU_SECONDS=1200
export GTEST_FILTER='*FillsAndCopies*:*Engine*Gpu*'
cat >"$scratch/config.json" <<'END'
{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 53}
END
export ALIQUOT_GPU_TRAINING="--model $scratch/config.json --padded 64 --sequence 8 --batches 1,2 --steps 7"
expect pass "simulated GPU 1" "$scratch/scripts/gpu_check.sh" tests training sanitize
cat "$OUT/summary.txt" "$OUT/training.txt"
# The last column of a step is the line of GoogleTest that counts the cases.
for line in 'kernels_test .*exit 0 .*PASSED \] [1-9]' 'engine_on_gpu_cuda_test .*exit 0 .*PASSED \] [1-9]' \
  'aliquot train --device cuda .*exit 0' 'training .*exit 0' 'sanitize: not run'; do
  expect pass "" grep -E "^$line" "$OUT/summary.txt"
done
for line in {1,2}' '{plain,direct,metrics,padded}; do
  expect pass "" grep -E "^ +${line/ / +} +[0-9]+ +[0-9.]+ %" "$OUT/training.txt"
done
expect pass "" python3 -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) != 16)' "$OUT/training.json"
exit $((failures > 0))
