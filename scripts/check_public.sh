#!/usr/bin/env bash
# scripts/check_public.sh [TREE]
# The headers that are installed (cmake/AliquotPublicHeaders.cmake) are those that include/aliquot/ leads to, and these alone
# export what they declare, by the visibility pragma around their namespace. TREE is this one unless named.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

listed() { sed -n '/^set(aliquot_public_headers/,/)/p' cmake/AliquotPublicHeaders.cmake | tr -s ' )' '\n' | grep '[.]h$' | LC_ALL=C sort; }

# What the umbrella headers include, and what that includes.
reached() {
  local fresh=(include/aliquot/*.h) seen=() next
  while [ ${#fresh[@]} -gt 0 ]; do
    seen+=("${fresh[@]}")
    mapfile -t next < <(sed -n 's/^#include "\(.*\)"/\1/p' "${fresh[@]}" | LC_ALL=C sort -u)
    mapfile -t fresh < <(comm -13 <(printf '%s\n' "${seen[@]}" | LC_ALL=C sort -u) <(printf '%s\n' "${next[@]}" | sed '/^$/d'))
  done
  printf '%s\n' "${seen[@]}" | grep -v '^include/' | LC_ALL=C sort -u
}

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
exporting() { { grep -rlE --include='*.h' '^#pragma GCC visibility push[(]default[)]' "${folders[@]}" || true; } | LC_ALL=C sort; }

bad=0
# complain WHY: of the files that are read, a line each.
complain() {
  local file
  while read -r file; do echo "$file: $1" && bad=1; done
}

complain "is reached from include/aliquot/ and so installed: list it in cmake/AliquotPublicHeaders.cmake" \
  < <(comm -13 <(listed) <(reached))
complain "is listed in cmake/AliquotPublicHeaders.cmake, and no header of include/aliquot/ leads to it" \
  < <(comm -23 <(listed) <(reached))
complain "exports what it declares, and is no public header: leave out #pragma GCC visibility" < <(comm -13 <(listed) <(exporting))
# One of macros alone has nothing to export.
declaring() { listed | while read -r file; do if [ -f "$file" ] && grep -q '^namespace aliquot' "$file"; then echo "$file"; fi; done; }
complain "is a public header: put #pragma GCC visibility push(default) before its namespace, and pop after it" \
  < <(comm -23 <(declaring) <(exporting))
exit $bad
