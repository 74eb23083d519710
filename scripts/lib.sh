#!/usr/bin/env bash
# Helpers for the scripts in this folder. Source this file; do not run it. It changes the working directory to the root
# of the tree.
set -euo pipefail
script_path=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# fail STATUS MESSAGE...: prints the message with the name of the script, and exits with the status.
fail() {
  local status=$1
  shift
  printf '%s: %s\n' "$(basename "$script_path")" "$*" >&2
  exit "$status"
}

# Prints the comment block at the top of the running script, which is its help text.
usage() { sed -n '2,/^[^#]/{/^# shellcheck /d;s/^# \{0,1\}//p}' "$script_path"; }

# Prints the number of usable cores. nproc alone would return OMP_NUM_THREADS, which the tests set.
core_count() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Prints the number of parallel compilations: one per core, but at most one per 1.5 GiB of available memory, which a
# C++20 or CUDA source needs.
job_count() {
  local by_cores by_memory
  by_cores=$(core_count)
  by_memory=$(awk '/^MemAvailable:/ {print int($2 / (1536 * 1024))}' /proc/meminfo)
  if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
  echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$((by_cores < by_memory ? by_cores : by_memory))}"
}

# build_folder PRESET: prints the build folder of the preset.
build_folder() { if [ "$1" = release ]; then echo build; else echo "build-$1"; fi; }

# configure PRESET: configures the preset, and prints only the summary of CMake's output. ALIQUOT_CMAKE_ARGS adds
# arguments to cmake's command line.
configure() {
  local folder log words
  folder=$(build_folder "$1")
  log=$folder/configure.log
  mkdir -p "$folder"
  read -ra words <<<"${ALIQUOT_CMAKE_ARGS:-}"
  if ! cmake --preset "$1" "${words[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    fail 1 "cmake could not configure preset $1; its output is above and in $log"
  fi
  sed -n '/^-- Aliquot /,/^-- Configuring done/{/Configuring done/d;s/^-- //p}' "$log"
}

# build PRESET [TARGET...]: configures the preset and builds the targets, or all targets if none is given.
build() {
  local preset=$1
  shift
  configure "$preset"
  cmake --build --preset "$preset" -j "$(job_count)" ${1:+--target "$@"}
}

# has_target PRESET TARGET: succeeds if the configured build has the target.
has_target() { ninja -C "$(build_folder "$1")" -t query "$2" >/dev/null 2>&1; }

# torch_python: prints the path of a Python interpreter with torch. This is the value of ALIQUOT_PYTHON or, if it is not
# set, the interpreter of a virtual environment in the user's cache folder. The first use creates the environment, with
# torch from PyPI (several GB).
torch_python() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/aliquot/torch
  if [ -n "${ALIQUOT_PYTHON:-}" ]; then
    "$ALIQUOT_PYTHON" -c 'import torch' 2>/dev/null ||
      fail 2 "ALIQUOT_PYTHON=$ALIQUOT_PYTHON cannot import torch: unset it to create a virtual environment with torch"
    echo "$ALIQUOT_PYTHON"
    return
  fi
  if ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    echo "installing torch from PyPI in $folder" >&2
    if ! { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch numpy transformers peft; } >&2; then
      fail 2 "cannot install torch in $folder (see above): set ALIQUOT_PYTHON to a Python that has torch"
    fi
  fi
  echo "$folder/bin/python"
}

# By default Open MPI refuses to run as root, or with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
