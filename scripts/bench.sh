#!/usr/bin/env bash
# scripts/bench.sh [AREA] [--with-torch]
# Areas: kernels communication optimizer engine checkpoint training cluster simulator; every one that exists when none is named.
# Prints a table (name, time, and each figure with its name; a ratio is to a reference measured in the same run) and writes
# build/bench/AREA.json in Google Benchmark's format. BENCHMARK_ARGS adds words to the program's command line, such as
# --benchmark_filter=copy. Exit 2: that area has no benchmarks yet.
# --with-torch puts PyTorch beside training and optimizer, by the python that ALIQUOT_PYTHON names; where none is named, by one of a virtual
# environment that is made on first use in the user's cache folder, with torch from PyPI (several GB).
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

known="kernels communication optimizer engine checkpoint training cluster simulator"
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
  if [[ " $known " != *" $area "* ]]; then fail 1 "no area is called $area; there are: $known"; fi
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
  if [ ${#areas[@]} -eq 0 ]; then fail 2 "no area has benchmarks yet"; fi
fi

for area in "${areas[@]}"; do
  if ! has_target release "${area}_bench"; then fail 2 "the area $area has no benchmarks yet (bench/${area}_bench.cpp is not there)"; fi
  cmake --build --preset release -j "$(job_count)" --target "${area}_bench"
  echo
  echo "$area"
  read -ra words <<<"${BENCHMARK_ARGS:-}"
  "build/bench/${area}_bench" --benchmark_out="build/bench/$area.json" --benchmark_out_format=json "${words[@]}"
  echo "written to build/bench/$area.json"
done
