#!/usr/bin/env bash
# scripts/gpu_check.sh --pack     on the build machine: builds for one GPU generation and fills .device/
# scripts/gpu_check.sh [QUICK]    on a machine with a GPU, which needs no compiler, network, MPI, HDF5 or Boost
# The check runs, in this order: every GPU test; the CUDA examples, compared with the host examples; the command on the
# GPU; compute-sanitizer over some tests; the benchmarks. QUICK omits the last two. Results are in $OUT or build/gpu/:
# summary.txt, tests.log, sanitizer.log and a JSON file for each benchmark. A failed step does not prevent later steps.
# Exit code: 3 if a step failed, 2 without a GPU or .device/.
# ALIQUOT_GPU_GENERATION is the GPU generation for --pack (90: H100 and H200). .device/ must not exceed 64 MiB.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

folder=.device
most_mib=64
generation=${ALIQUOT_GPU_GENERATION:-90}

# Libraries that a GPU machine already has: C and C++, the driver, and NVIDIA's libraries in its Python packages.
left_out='linux-vdso|ld-linux|/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|nvidia-ml|nccl|cublas|cublasLt)\.so'

# The programs to pack, if the build has them: tests that use a GPU, and benchmarks of loops with a GPU version.
programs="device_cuda_test philox_cuda_test kernels_test lane_events_cuda_test conformance_cuda_threads_test
  conformance_nccl_test optim_update_device_test optim_orthogonalize_device_test examples/transformer
  examples/transformer_sharded examples/transformer_cuda examples/transformer_cuda_sharded
  backend_cuda_test aliquot_command kernels_bench optimizer_bench"

pack() {
  cmake --preset release -B build-gpu -DALIQUOT_CUDA=ON -DALIQUOT_MPI=OFF "-DCMAKE_CUDA_ARCHITECTURES=$generation"
  local known=() name program library
  for name in $programs; do
    if ninja -C build-gpu -t query "$name" >/dev/null 2>&1; then known+=("$name"); fi
  done
  cmake --build build-gpu -j "$(job_count)" --target "${known[@]}"
  rm -rf $folder
  mkdir -p $folder/bin $folder/lib
  for name in "${known[@]}"; do
    program=$(find build-gpu -path "*/${name%_command}" -type f -perm -u+x)
    strip -o "$folder/bin/$(basename "$program")" "$program"
    for library in $(ldd "$program" | awk '$3 ~ "^/" {print $3}' | grep -Ev "$left_out"); do
      cp -Ln "$library" $folder/lib/
    done
  done
  du -sh $folder
  if [ "$(du -sm $folder | cut -f1)" -gt $most_mib ]; then fail 1 "$folder is larger than $most_mib MiB"; fi
}

# Prints the folders of NVIDIA's libraries, in Python packages and in the CUDA toolkit.
nvidia_folders() {
  local site
  for site in $(python3 -c 'import site, sysconfig
print(sysconfig.get_path("purelib"), *site.getsitepackages())' 2>/dev/null); do
    find "$site/nvidia" \( -name 'libnccl.so.2' -o -name 'libcublas.so.1*' \) -printf '%h\n' 2>/dev/null
  done | sort -u
  if [ -d /usr/local/cuda/lib64 ]; then echo /usr/local/cuda/lib64; fi
}

# step NAME COMMAND...: runs the command, appends its output to $log, and prints one line with its exit code.
failures=0
step() {
  local name=$1 status=0 started=$SECONDS last
  shift
  echo "== $name: $*" >>"$log"
  timeout --kill-after=10 "${step_seconds:-240}" "$@" >"$out/step.txt" 2>&1 || status=$?
  cat "$out/step.txt" >>"$log"
  # The output of a benchmark or of a crashed test may have no line that matches.
  last=$({ grep -E '^\[  (PASSED|FAILED|SKIPPED)|ERROR SUMMARY' "$out/step.txt" || true; } | tail -2 | tr -s ' \n' ' ')
  if [ $status -ne 0 ]; then failures=$((failures + 1)); fi
  printf '%-44s exit %-3d %4d s  %s\n' "$name" $status $((SECONDS - started)) "$last" | tee -a "$out/summary.txt"
}

tests() {
  local test
  log=$out/tests.log
  for test in "$folder"/bin/*_test; do
    local step_seconds=240
    case $test in *nccl*) step_seconds=480 ;; esac  # starts five worlds of up to eight processes
    step "$(basename "$test")" "$test" --gtest_brief=1
  done
}

examples() {
  log=$out/tests.log
  if [ -x $folder/bin/transformer_cuda ]; then
    step "the CUDA examples" tests/apps/examples/cuda_example_test.sh $folder/bin
  fi
  if [ -x $folder/bin/aliquot ]; then
    step "aliquot train --device cuda" tests/apps/train/train_on_gpus.sh $folder/bin/aliquot
    step "aliquot doctor --measure" $folder/bin/aliquot doctor --measure "$out/machine.json"
  fi
}

sanitize() {
  log=$out/sanitizer.log
  if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped: compute-sanitizer is not installed" | tee -a "$out/summary.txt"
    return
  fi
  local test check=(compute-sanitizer --error-exitcode 9)
  for test in "$folder"/bin/*cuda*_test "$folder"/bin/{kernels,optim_update_device,optim_orthogonalize_device}_test; do
    if [ ! -x "$test" ]; then continue; fi
    # compute-sanitizer makes kernels tens of times slower. So omit tests with many ranks or large counts.
    step "memcheck $(basename "$test")" "${check[@]}" --tool memcheck "$test" --gtest_brief=1 \
      '--gtest_filter=*:-*8Ranks*:*1000003:*ManySmall*:*AFailedAllocation*'
  done
  step "racecheck kernels_test" "${check[@]}" --tool racecheck $folder/bin/kernels_test --gtest_brief=1
}

benches() {
  local bench name
  log=$out/tests.log
  for bench in "$folder"/bin/*_bench; do
    if [ ! -x "$bench" ]; then continue; fi
    name=$(basename "$bench" _bench)
    step "bench $name" "$bench" "--benchmark_out=$out/$name.json" --benchmark_out_format=json
  done
}

check() {
  if [ ! -d $folder/bin ]; then
    fail 2 "$folder/bin does not exist: run scripts/gpu_check.sh --pack on the build machine"
  fi
  if ! nvidia-smi >/dev/null 2>&1; then fail 2 "nvidia-smi found no GPU on this machine"; fi
  out=${OUT:-build/gpu}
  mkdir -p "$out"
  : >"$out/summary.txt"
  LD_LIBRARY_PATH=$PWD/$folder/lib:$(nvidia_folders | paste -sd:)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # Several ranks with four lanes each share the GPU. With the default 8 queues their streams would wait for each other.
  export LD_LIBRARY_PATH CUDA_DEVICE_MAX_CONNECTIONS=32
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader | tee -a "$out/summary.txt"
  tests
  examples
  if [ "${1:-}" != QUICK ]; then
    sanitize
    benches
  fi
  rm -f "$out/step.txt"
  if [ $failures -gt 0 ]; then fail 3 "$failures of the steps above failed; see $out"; fi
}

case ${1:-} in
  --help | -h) usage ;;
  --pack) pack ;;
  '' | QUICK) check "$@" ;;
  *) fail 1 "invalid argument '$1': expected --pack or QUICK (see --help)" ;;
esac
