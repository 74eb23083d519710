#!/usr/bin/env bash
# Checks that gpu_check.sh runs all its steps, whatever they print and even if one fails. Small scripts simulate the
# packed programs and the tools of a GPU machine.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

mkdir -p "$scratch/scripts" "$scratch/.device/bin" "$scratch/bin" "$scratch/bench"
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
cp "$top/bench/training_gpu.py" "$scratch/bench/"
export OUT=$scratch/out
PATH=$scratch/bin:$PATH

# shellcheck disable=SC2317 # expect calls it
check() { "$scratch/scripts/gpu_check.sh" "$@"; }
# lines PATTERN...: fails unless the lines of the summary with these texts exist, in this order.
# shellcheck disable=SC2317 # expect calls it
lines() {
  local text at last=0
  for text in "$@"; do
    at=$(grep -nF -m1 -- "$text" "$OUT/summary.txt" | cut -d: -f1)
    if [ -z "$at" ] || [ "$at" -le "$last" ]; then
      echo "no line '$text' in its place: $(cat "$OUT/summary.txt")"
      return 1
    fi
    last=$at
  done
}

program .device/bin/conformance_nccl_test 0 "[  PASSED  ] 9 tests."
program .device/bin/device_cuda_test 0 "[  PASSED  ] 3 tests."
expect pass "bench kernels" check
expect pass "" lines device_cuda_test "[ PASSED ] 7 tests." a_silent_test conformance_nccl_test "bench kernels" \
  "memcheck kernels_test" "racecheck kernels_test" "synccheck kernels_test"
expect pass "" check speed
expect fail "" grep -q kernels_test "$OUT/summary.txt"

program .device/bin/a_silent_test 1 "it crashed"
expect fail "1 of the steps above failed" check QUICK
expect pass "" lines kernels_test conformance_nccl_test

# A test that finds no GPU has failed, although it skips its cases.
program .device/bin/a_silent_test 0 "no usable GPU: the kernel is compiled but not run"
expect fail "1 of the steps above failed" check tests
expect pass "" lines "skipped cases, because it found no GPU"

# All steps of a part share its time.
printf '#!/bin/sh\nsleep 3\n' >"$scratch/.device/bin/device_cuda_test"
expect fail "steps above failed" env ALIQUOT_GPU_SECONDS=1 "$scratch/scripts/gpu_check.sh" tests
expect pass "" lines "device_cuda_test                             exit 124" "kernels_test: not run, the time of the part is over"

# A tool that the machine refuses is reported, and is not a failure.
program bin/compute-sanitizer 1 "this tool needs the permission of the administrator"
expect pass "compute-sanitizer does not work here: this tool needs the permission" check sanitize
expect fail "invalid argument 'fast'" check fast

# The training part runs each program twice and compares it with PyTorch. Substitutes for both print the same rates at
# each step, and the second run of each is slower.
cat >"$scratch/.device/bin/aliquot" <<'ALIQUOT'
#!/bin/bash
case $* in
  *" 50304"*) rate=9000 ;;
  *"--micro-batch 4 "*) rate=8000 ;;
  *) rate=5000 ;;
esac
echo "$*" >>"$(dirname "$0")/calls"
if [ "$(grep -cxF -- "$*" "$(dirname "$0")/calls")" -gt 1 ]; then rate=$((rate / 2)); fi
for step in 1 2 3 4 5 6 7; do echo "step $step/7  loss 3  norm 1  lr 1  $rate tokens/s"; done
while [ $# -gt 1 ] && [ "$1" != --metrics ]; do shift; done
if [ $# -gt 1 ]; then
  for step in 1 2 3 4 5 6 7; do echo "{\"step\":$step,\"step_seconds\":0.5}"; done >"$2"
  echo '{"done":{"measured_peak":1073741824}}' >>"$2"
fi
ALIQUOT
chmod +x "$scratch/.device/bin/aliquot"
cat >"$scratch/bin/python3" <<'PYTHON'
#!/bin/bash
if [ "$1" = -c ]; then exit 0; fi
for step in 1 2 3 4 5 6 7; do echo "step 0.25"; done
echo "memory 2147483648"
PYTHON
chmod +x "$scratch/bin/python3"
sed -i "1s:.*:#!$(command -v -p python3):" "$scratch/bench/training_gpu.py"
expect pass "" check training
# rate BATCH VARIANT TOKENS LOWER OF_TORCH MEMORY: checks a line of the table.
# shellcheck disable=SC2317 # expect calls it
rate() { tr -s ' ' <"$OUT/training.txt" | grep -xF " $*"; }
expect pass "" rate 1 plain 5000 50.0 % 1.221
expect pass "" rate 1 direct 5000 50.0 % 1.221
expect pass "" rate 4 plain 8000 50.0 % 0.488
expect pass "" rate 4 padded 9000 50.0 % 0.549
expect pass "" rate 16 metrics 32768 0.0 % 0.500 1.00 GiB
expect pass "" rate 1 torch 4096 0.0 % 1.000 2.00 GiB
program .device/bin/aliquot 3 "a rank failed"
expect fail "1 of the steps above failed" check training
rm "$scratch/.device/bin/aliquot" "$scratch/bin/python3"

# The pack is unpacked once.
tar -C "$scratch/.device" -cJf "$scratch/pack.tar.xz" bin --transform 's:^bin/a_silent_test$:bin/packed_test:'
mkdir "$scratch/.device/lib"
touch "$scratch/.device/lib/left_over"
mv "$scratch/pack.tar.xz" "$scratch/.device/"
program .device/bin/a_silent_test 0 "neither word"
touch -d yesterday "$scratch/.device/bin"
expect pass "" check speed
expect pass "" test -x "$scratch/.device/bin/packed_test"
expect fail "" test -e "$scratch/.device/lib/left_over"
program .device/bin/kept_test 0 "neither word"
expect pass "" check speed
expect pass "" test -x "$scratch/.device/bin/kept_test"

# Without xz, Python unpacks the pack.
program bin/tar 2 "xz: Cannot exec: No such file or directory"
touch -d yesterday "$scratch/.device/bin"
expect pass "" check speed
expect pass "" test -x "$scratch/.device/bin/packed_test"
expect fail "" test -e "$scratch/.device/bin/kept_test"
rm "$scratch/bin/tar"

# A build that fails leaves the earlier pack as it is.
program bin/cmake 1 "no such preset"
expect fail "no such preset" check --pack
expect pass "" test -x "$scratch/.device/bin/kernels_test"
exit $((failures > 0))
