#!/usr/bin/env bash
# scripts/gpu_check.sh --pack     on the build machine: builds for one GPU generation and writes .device/pack.tar.xz
# scripts/gpu_check.sh [PART...]  on a machine with a GPU, which needs no compiler, network, MPI, HDF5 or Boost
# Parts, by default all of them in this order. QUICK is another name for tests.
#   tests     every GPU test, the most basic ones first: device, kernels, optimizer, layers of models, ranks and engines
#             that share a GPU, the CUDA examples, the command, NCCL
#   speed     rates of the machine (aliquot doctor --measure) and the benchmarks
#   training  GPT-2 124M in bf16 with micro-batches of 1, 4 and 16, beside PyTorch if python3 has it
#   sanitize  compute-sanitizer over the tests of kernels
# All steps of a part together have ALIQUOT_GPU_SECONDS (520). A failed step does not prevent later steps. A test that
# skips cases because it finds no GPU has failed. Results are in $OUT or build/gpu/: summary.txt, a log of each part,
# and a JSON file for each benchmark. training.txt has the rates of training.
# Exit code: 3 if a step failed or had no time, 2 without a GPU or a pack.
# ALIQUOT_GPU_TRAINING adds options to bench/training_gpu.py, which the part training runs.
# ALIQUOT_GPU_GENERATION is the GPU generation for --pack (90: H100 and H200). The pack must not exceed 30 MiB.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

folder=.device
most_mib=30
part_seconds=${ALIQUOT_GPU_SECONDS:-520}
generation=${ALIQUOT_GPU_GENERATION:-90}

# Libraries that a GPU machine already has: C and C++, the driver, and NVIDIA's libraries in its Python packages.
left_out='linux-vdso|ld-linux|/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|nvidia-ml|nccl|cublas|cublasLt)\.so'

# The programs to pack, if the build has them: tests that use a GPU, and benchmarks of loops with a GPU version.
programs="device_cuda_test philox_cuda_test kernels_test lane_events_cuda_test conformance_cuda_threads_test
  conformance_nccl_test engine_on_gpu_cuda_test optim_update_device_test optim_orthogonalize_device_test examples/transformer
  examples/transformer_sharded examples/transformer_cuda examples/transformer_cuda_sharded
  backend_cuda_test aliquot_command kernels_bench optimizer_bench"

pack() {
  # With -lineinfo, compute-sanitizer and ncu show lines of sources.
  cmake --preset release -B build-gpu -DALIQUOT_CUDA=ON -DALIQUOT_MPI=OFF "-DCMAKE_CUDA_ARCHITECTURES=$generation" \
    -DCMAKE_CUDA_FLAGS=-lineinfo
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
  # The programs have the same kernels. xz with a large dictionary stores each of them once: 17 MiB, gzip 49 MiB.
  tar -C $folder --sort=name -c bin lib | xz -9 >$folder/pack.tar.xz
  rm -r "${folder:?}"/{bin,lib}
  ls -lh $folder/pack.tar.xz
  if [ "$(du -m $folder/pack.tar.xz | cut -f1)" -gt $most_mib ]; then
    fail 1 "$folder/pack.tar.xz is larger than $most_mib MiB"
  fi
}

# Unpacks the pack, unless that was done before.
unpack() {
  if [ ! -f $folder/pack.tar.xz ] || [ $folder/bin -nt $folder/pack.tar.xz ]; then return; fi
  rm -rf "${folder:?}"/{bin,lib}
  # Python unpacks it where xz is not installed.
  if ! tar -C $folder -xJf $folder/pack.tar.xz 2>/dev/null; then
    python3 -c 'import sys, tarfile
tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2])' $folder/pack.tar.xz $folder
  fi
  touch $folder/bin
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

# step NAME COMMAND...: runs the command, appends its output to $log, and prints one line with its exit code. Uses at
# most $step_seconds of the time of the part, by default half of it.
failures=0
step() {
  local name=$1 status=0 started=$SECONDS last limit=${step_seconds:-$(((part_seconds + 1) / 2))} left=$((part_end - SECONDS))
  shift
  if [ $left -lt 1 ]; then
    failures=$((failures + 1))
    echo "$name: not run, the time of the part is over" | tee -a "$out/summary.txt"
    return
  fi
  if [ "$limit" -gt $left ]; then limit=$left; fi
  echo "== $name: $*" >>"$log"
  timeout --kill-after=10 "$limit" "$@" >"$out/step.txt" 2>&1 || status=$?
  cat "$out/step.txt" >>"$log"
  # The output of a benchmark or of a crashed test may have no line that matches.
  last=$({ grep -E '^\[  (PASSED|FAILED|SKIPPED)|ERROR SUMMARY' "$out/step.txt" || true; } | tail -2 | tr -s ' \n' ' ')
  if [ $status -eq 0 ] && grep -q 'no usable GPU' "$out/step.txt"; then
    status=1
    last="skipped cases, because it found no GPU"
  fi
  if [ $status -ne 0 ]; then failures=$((failures + 1)); fi
  printf '%-44s exit %-3d %4d s  %s\n' "$name" $status $((SECONDS - started)) "$last" | tee -a "$out/summary.txt"
}

# Prints the packed tests, the most basic ones first. NCCL is last, because a collective that hangs uses up the time.
tests_in_order() {
  local name first="device_cuda philox_cuda kernels optim_update_device optim_orthogonalize_device" models="backend_cuda"
  local ranks="lane_events_cuda conformance_cuda_threads engine_on_gpu_cuda" last="conformance_nccl"
  for name in $first $models $ranks; do
    if [ -x "$folder/bin/${name}_test" ]; then echo "$folder/bin/${name}_test"; fi
  done
  for name in "$folder"/bin/*_test; do
    case " $first $models $ranks $last " in *" $(basename "$name" _test) "*) ;; *) echo "$name" ;; esac
  done
}

tests() {
  local test
  for test in $(tests_in_order); do step "$(basename "$test")" "$test" --gtest_brief=1; done
  if [ -x $folder/bin/transformer_cuda ]; then
    step "the CUDA examples" tests/apps/examples/cuda_example_test.sh $folder/bin
  fi
  if [ -x $folder/bin/aliquot ]; then
    # NCCL needs one GPU per rank.
    local with_nccl=()
    if [ "$(nvidia-smi --query-gpu=uuid --format=csv,noheader | wc -l)" -gt 1 ]; then with_nccl=(nccl); fi
    step "aliquot train --device cuda" tests/apps/train/train_on_gpus.sh $folder/bin/aliquot "${with_nccl[@]}"
  fi
  local step_seconds=$part_seconds  # starts five worlds of up to eight processes
  test=$folder/bin/conformance_nccl_test
  if [ -x $test ]; then step conformance_nccl_test $test --gtest_brief=1; fi
}

speed() {
  local bench name
  if [ -x $folder/bin/aliquot ]; then
    step "aliquot doctor --measure" $folder/bin/aliquot doctor --measure "$out/machine.json"
  fi
  for bench in "$folder"/bin/*_bench; do
    if [ ! -x "$bench" ]; then continue; fi
    name=$(basename "$bench" _bench)
    step "bench $name" "$bench" "--benchmark_out=$out/$name.json" --benchmark_out_format=json
  done
}

training() {
  local words step_seconds=$part_seconds
  if [ ! -x $folder/bin/aliquot ]; then return; fi
  read -ra words <<<"${ALIQUOT_GPU_TRAINING:-}"
  step "training" bench/training_gpu.py --aliquot $folder/bin/aliquot --seconds $((part_seconds * 9 / 10)) \
    --json "$out/training.json" "${words[@]}"
  cp "$out/step.txt" "$out/training.txt"
}

# Whether compute-sanitizer exists and may watch programs here. Otherwise prints why not.
sanitizer_works() {
  local probe=$folder/bin/kernels_test
  if ! command -v compute-sanitizer >/dev/null; then
    echo "sanitize: not run, compute-sanitizer is not installed" | tee -a "$out/summary.txt"
    return 1
  fi
  if ! timeout 60 compute-sanitizer "$probe" '--gtest_filter=*FillsAndCopies*cuda*' >"$out/step.txt" 2>&1 &&
    ! grep -q 'ERROR SUMMARY' "$out/step.txt"; then
    echo "sanitize: not run, compute-sanitizer does not work here: $(tail -1 "$out/step.txt")" | tee -a "$out/summary.txt"
    return 1
  fi
}

sanitize() {
  if ! sanitizer_works; then return; fi
  local test name check=(compute-sanitizer --error-exitcode 9)
  for name in kernels optim_update_device optim_orthogonalize_device backend_cuda device_cuda philox_cuda lane_events_cuda \
    engine_on_gpu_cuda; do
    test=$folder/bin/${name}_test
    if [ ! -x "$test" ]; then continue; fi
    # compute-sanitizer makes kernels tens of times slower. So omit tests with many ranks or large counts. Tests of
    # failed allocations cause errors of the API on purpose.
    step "memcheck ${name}_test" "${check[@]}" --tool memcheck --report-api-errors no "$test" --gtest_brief=1 \
      '--gtest_filter=*:-*8Ranks*:*1000003:*ManySmall*:*AFailedAllocation*'
  done
  # Kernels that use shared memory.
  local tool
  for tool in racecheck synccheck; do
    for name in kernels backend_cuda; do
      test=$folder/bin/${name}_test
      if [ -x "$test" ]; then step "$tool ${name}_test" "${check[@]}" --tool $tool "$test" --gtest_brief=1; fi
    done
  done
}

check() {
  local part
  unpack
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
  for part in "$@"; do
    log=$out/$part.log
    : >"$log"
    part_end=$((SECONDS + part_seconds))
    "$part"
  done
  rm -f "$out/step.txt"
  if [ $failures -gt 0 ]; then fail 3 "$failures of the steps above failed; see $out"; fi
}

parts=()
for argument in "$@"; do
  case $argument in
    --help | -h)
      usage
      exit
      ;;
    --pack)
      pack # in `pack && exit`, bash would ignore failures of the commands in pack
      exit
      ;;
    tests | speed | training | sanitize) parts+=("$argument") ;;
    QUICK) parts+=(tests) ;;
    *) fail 1 "invalid argument '$argument': expected --pack, tests, speed, training, sanitize or QUICK (see --help)" ;;
  esac
done
if [ ${#parts[@]} -eq 0 ]; then parts=(tests speed training sanitize); fi
check "${parts[@]}"
