#!/usr/bin/env bash
# scripts/check_environment.sh [TREE]
# Checks that docs/environment.md names every environment variable that sources and scripts read, and that they contain
# every variable of its tables. TREE is the root of the tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

page=docs/environment.md
modules=(apps capi checkpoint engine kernels libtorch optim sharding)

# sources FOLDER...: prints the C++ and CUDA sources and headers.
sources() { find "$@" -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.c'; }

# Prints the names in calls of getenv(). In modules, where a call can have a variable as its argument, also prints all
# other literals of the same file that look like the name of a variable.
read_by_sources() {
  sources "${modules[@]}" tests bench | xargs grep -ohE 'getenv\("[A-Za-z0-9_]+"\)' | sed -E 's/.*"(.*)".*/\1/'
  sources "${modules[@]}" | xargs grep -lE 'getenv\([a-z]' | xargs grep -ohE '"([A-Z][A-Z0-9]*_[A-Z0-9_]+|OMPI_MCA_[a-z_]+)"' |
    tr -d '"'
}

# Prints the uppercase names that shell scripts expand with a default, and all names that begin with ALIQUOT_ or GUIDE_.
read_by_scripts() {
  find scripts -type f -exec grep -ohE '\$\{[A-Z][A-Z0-9_]*(:?[-+?])' {} + | sed -E 's/^..([A-Z0-9_]+).*/\1/'
  find scripts tests \( -path 'scripts/*' -o -name '*.sh' \) -type f -exec grep -ohE '\$\{?(ALIQUOT|GUIDE)_[A-Z_]+' {} + |
    grep -oE '[A-Z].*'
}

# Names that a test of the build system expands in CMake code.
not_variables='^ALIQUOT_(CUDA|MPI|FORTRAN|TORCH)_WHY$|^ALIQUOT_WITH_(CUDA|MPI|FORTRAN|TORCH)$'
bad=0
while read -r name; do
  if ! grep -qF "\`$name\`" "$page"; then echo "$page lacks the variable $name" && bad=1; fi
done < <({ read_by_sources && read_by_scripts; } | grep -vE "$not_variables" | LC_ALL=C sort -u)

while read -r name; do
  if ! grep -rqwF "$name" "${modules[@]}" tests bench scripts; then
    echo "$page lists $name, which no source or script contains" && bad=1
  fi
done < <(sed -nE 's/^\| (`[A-Z][^|]*) \|.*/\1/p' "$page" | tr -d '`,' | tr ' ' '\n' | LC_ALL=C sort -u)
exit $bad
