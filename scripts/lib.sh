#!/usr/bin/env bash
# Helpers of the scripts beside it: sourced, never run. Leaves the caller in the top of the tree.
set -euo pipefail
script_path=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# fail STATUS SENTENCE
fail() {
  local status=$1
  shift
  printf '%s: %s\n' "$(basename "$script_path")" "$*" >&2
  exit "$status"
}

# The comment at the head of the running script, which is its help.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script_path"; }

# The cores we may use. nproc alone would answer OMP_NUM_THREADS, which the tests are given.
core_count() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# How many compilers to run at once: one a core, but a C++20 or CUDA source wants about 1.5 GiB.
job_count() {
  local by_cores by_memory
  by_cores=$(core_count)
  by_memory=$(awk '/^MemAvailable:/ {print int($2 / (1536 * 1024))}' /proc/meminfo)
  if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
  echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$((by_cores < by_memory ? by_cores : by_memory))}"
}

# build_folder PRESET: where the preset builds.
build_folder() { if [ "$1" = release ]; then echo build; else echo "build-$1"; fi; }

# configure PRESET: quiet but for the summary. ALIQUOT_CMAKE_ARGS adds words to cmake's command line.
configure() {
  local folder log words
  folder=$(build_folder "$1")
  log=$folder/configure.log
  mkdir -p "$folder"
  read -ra words <<<"${ALIQUOT_CMAKE_ARGS:-}"
  if ! cmake --preset "$1" "${words[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    fail 1 "cmake could not configure preset $1 (above, and in $log)"
  fi
  sed -n '/^-- Aliquot /,/^-- Configuring done/{/Configuring done/d;s/^-- //p}' "$log"
}

# build PRESET [TARGET...]: all targets when none is named.
build() {
  local preset=$1
  shift
  configure "$preset"
  cmake --build --preset "$preset" -j "$(job_count)" ${1:+--target "$@"}
}

# has_target PRESET TARGET: whether the configured build knows it.
has_target() { ninja -C "$(build_folder "$1")" -t query "$2" >/dev/null 2>&1; }

# torch_python: the python that has torch: what ALIQUOT_PYTHON names, or one of a virtual environment that is made on first use in
# the user's cache folder, with torch from PyPI (several GB).
torch_python() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/aliquot/torch
  if [ -n "${ALIQUOT_PYTHON:-}" ]; then
    "$ALIQUOT_PYTHON" -c 'import torch' 2>/dev/null || fail 2 "$ALIQUOT_PYTHON has no torch: leave ALIQUOT_PYTHON unset, and one is made"
    echo "$ALIQUOT_PYTHON"
    return
  fi
  if ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    echo "installing torch from PyPI in $folder" >&2
    if ! { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch numpy transformers; } >&2; then
      fail 2 "torch could not be installed in $folder (above); name a python that has it with ALIQUOT_PYTHON"
    fi
  fi
  echo "$folder/bin/python"
}

# Open MPI refuses to run as root, or with more ranks than cores, unless told.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
