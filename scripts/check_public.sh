#!/usr/bin/env bash
# scripts/check_public.sh [TREE]
# Checks that the installed headers (cmake/AliquotPublicHeaders.cmake) are exactly those that include/aliquot/ includes,
# directly or not. Also checks that only these headers export their declarations, by a visibility pragma around the
# namespace. TREE is the root of the tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# Prints the headers that cmake/AliquotPublicHeaders.cmake lists.
listed() {
  sed -n '/^set(aliquot_public_headers/,/)/p' cmake/AliquotPublicHeaders.cmake | tr -s ' )' '\n' | grep '[.]h$' |
    LC_ALL=C sort
}

# Prints the headers that the umbrella headers include, directly or indirectly.
reached() {
  local fresh=(include/aliquot/*.h) seen=() next
  while [ ${#fresh[@]} -gt 0 ]; do
    seen+=("${fresh[@]}")
    mapfile -t next < <(sed -n 's/^#include "\(.*\)"/\1/p' "${fresh[@]}" | LC_ALL=C sort -u)
    mapfile -t fresh < <(comm -13 <(printf '%s\n' "${seen[@]}" | LC_ALL=C sort -u) \
      <(printf '%s\n' "${next[@]}" | sed '/^$/d'))
  done
  printf '%s\n' "${seen[@]}" | grep -v '^include/' | LC_ALL=C sort -u
}

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
# Prints the headers that export their declarations.
exporting() {
  { grep -rlE --include='*.h' '^#pragma GCC visibility push[(]default[)]' "${folders[@]}" || true; } | LC_ALL=C sort
}

bad=0
# complain MESSAGE: prints a line for each file name on standard input.
complain() {
  local file
  while read -r file; do echo "$file: $1" && bad=1; done
}

complain "is included from include/aliquot/, so it must be installed: list it in cmake/AliquotPublicHeaders.cmake" \
  < <(comm -13 <(listed) <(reached))
complain "is listed in cmake/AliquotPublicHeaders.cmake, but no header of include/aliquot/ includes it" \
  < <(comm -23 <(listed) <(reached))
complain "exports its declarations, but is not a public header: remove #pragma GCC visibility" \
  < <(comm -13 <(listed) <(exporting))
# Prints the listed headers that contain declarations. A header that has only macros has nothing to export.
declaring() {
  listed | while read -r file; do
    if [ -f "$file" ] && grep -q '^namespace aliquot' "$file"; then echo "$file"; fi
  done
}
complain "is a public header: put #pragma GCC visibility push(default) before its namespace, and pop after it" \
  < <(comm -23 <(declaring) <(exporting))
exit $bad
