#!/usr/bin/env bash
# scripts/check_types.sh [TREE]
# Fails on two types of one name in two files, outside anonymous namespaces: a program that both are linked into takes functions of
# one for those of the other, and no compiler tells. TREE is this one unless named.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps include; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done

# shellcheck disable=SC2016 # awk's own
find "${folders[@]}" -path apps/examples -prune -o -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print |
  LC_ALL=C sort | xargs awk '
FNR == 1 { hidden = 0; space = "" }
/^namespace \{/ { hidden = 1 }
/^\}  \/\/ namespace$/ { hidden = 0 }
/^namespace [a-z_:]+ \{/ { space = $2 }
/^template <.*> (struct|class) / { sub(/^template <[^>]*> /, "") }
!hidden && !/;$/ && /^(struct|class|union|enum class) / {
  sub(/^enum /, ""); sub(/ alignas\([0-9]+\)/, "")
  name = $2
  if (name ~ /::/) next  # of a class, which stands elsewhere
  sub(/[^A-Za-z0-9_].*/, "", name)
  if (name == "") next
  name = space "::" name
  if (name in where && where[name] != FILENAME) {
    print FILENAME ":" FNR ": " name " is the name of a type in " where[name] " too"
    bad = 1
  }
  where[name] = FILENAME
}
END { exit bad }'
