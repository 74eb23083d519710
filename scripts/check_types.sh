#!/usr/bin/env bash
# scripts/check_types.sh [TREE]
# Fails if two files define types of the same qualified name outside anonymous namespaces. In a program that links both
# files, the inline functions of one type can replace those of the other, and compilers do not diagnose it. TREE is the
# root of the tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps include; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done

# shellcheck disable=SC2016 # awk expands the variables
find "${folders[@]}" -path apps/examples -prune -o \
  -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print |
  LC_ALL=C sort | xargs awk '
FNR == 1 { hidden = 0; space = "" }
/^namespace \{/ { hidden = 1 }
/^\}  \/\/ namespace$/ { hidden = 0 }
/^namespace [a-z_:]+ \{/ { space = $2 }
/^template <.*> (struct|class) / { sub(/^template <[^>]*> /, "") }
!hidden && !/;$/ && /^(struct|class|union|enum class) / {
  sub(/^enum /, ""); sub(/ alignas\([0-9]+\)/, "")
  name = $2
  if (name ~ /::/) next  # a nested type, defined outside its class
  sub(/[^A-Za-z0-9_].*/, "", name)
  if (name == "") next
  name = space "::" name
  if (name in where && where[name] != FILENAME) {
    print FILENAME ":" FNR ": " name " is also defined in " where[name]
    bad = 1
  }
  where[name] = FILENAME
}
END { exit bad }'
