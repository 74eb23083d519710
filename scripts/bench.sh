#!/usr/bin/env bash
# scripts/bench.sh [AREA] [--with-torch]
# Runs the benchmarks of an area, or of every area: kernels products communication optimizer engine checkpoint training
# cluster simulator. Prints the time and the counters of each benchmark. A counter ratio_to_NAME compares with the
# reference NAME, which the same run measured. Writes build/bench/AREA.json in Google Benchmark's format.
# BENCHMARK_ARGS adds arguments to the program's command line, such as --benchmark_filter=copy. Exit code 2: the area
# has no benchmarks.
# --with-torch adds PyTorch to training, products and optimizer. It uses the Python that ALIQUOT_PYTHON names, or else
# creates a virtual environment in the user's cache folder on first use, with torch from PyPI (several GB).
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

known="kernels products communication optimizer engine checkpoint training cluster simulator"
areas=()
with_torch=
for argument in "$@"; do
  case $argument in
    --help | -h) usage && exit ;;
    --with-torch) with_torch=1 ;;
    -*) fail 1 "unknown option $argument (see --help)" ;;
    *) areas+=("$argument") ;;
  esac
done
for area in "${areas[@]}"; do
  if [[ " $known " != *" $area "* ]]; then fail 1 "unknown area '$area': expected one of $known"; fi
done

scripts/setup.sh
configure release
if [ -n "$with_torch" ]; then
  ALIQUOT_BENCH_PYTHON=$(torch_python)
  export ALIQUOT_BENCH_PYTHON
fi
if [ ${#areas[@]} -eq 0 ]; then
  for area in $known; do
    if has_target release "${area}_bench"; then areas+=("$area"); fi
  done
  if [ ${#areas[@]} -eq 0 ]; then fail 2 "this build has no benchmarks"; fi
fi

for area in "${areas[@]}"; do
  if ! has_target release "${area}_bench"; then fail 2 "this build has no benchmarks of the area $area"; fi
  cmake --build --preset release -j "$(job_count)" --target "${area}_bench"
  echo
  echo "$area"
  read -ra words <<<"${BENCHMARK_ARGS:-}"
  "build/bench/${area}_bench" --benchmark_out="build/bench/$area.json" --benchmark_out_format=json "${words[@]}"
  echo "written to build/bench/$area.json"
done
