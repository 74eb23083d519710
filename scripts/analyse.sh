#!/usr/bin/env bash
# scripts/analyse.sh [cppcheck | tidy]
# Runs static analysis that is too slow for every change: cppcheck (minutes) and clang-tidy over all sources (an hour or
# more on two cores). An argument selects one of them. .clang-tidy configures clang-tidy, and this script configures
# cppcheck. Suppress a false positive in the source, with a reason. scripts/setup.sh --dev installs the tools.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

which=${1:-all}
case $which in
  --help | -h) usage && exit ;;
  all | cppcheck | tidy) ;;
  *) fail 1 "invalid argument '$which': expected cppcheck or tidy (see --help)" ;;
esac
bad=()

# Other tools check style. cppcheck does not need system headers. Tests are excluded, because it misreads GoogleTest's
# macros. Its checks of moved-from objects and of large arguments passed by value give false positives, and clang-tidy
# covers both. The address sanitizer covers dangling references.
run_cppcheck() {
  local folders=(kernels sharding optim checkpoint engine capi apps)
  # The examples are excluded. They are separate programs, and several of them define the same names.
  cppcheck --enable=warning,performance,portability --inline-suppr --std=c++20 --language=c++ --quiet \
    -j "$(core_count)" -I . -I include -i apps/examples \
    --suppress=missingIncludeSystem --suppress=accessMoved --suppress=passedByValue \
    --suppress=invalidLifetime --suppress=returnDanglingLifetime --error-exitcode=1 \
    --template='{file}:{line}: {severity}: {message} [{id}]' "${folders[@]}"
}

if [ "$which" != tidy ]; then
  if ! command -v cppcheck >/dev/null; then fail 2 "cppcheck is missing; scripts/setup.sh --dev installs it"; fi
  if run_cppcheck; then echo "ok: cppcheck"; else bad+=(cppcheck); fi
fi
if [ "$which" != cppcheck ]; then
  if ! command -v clang-tidy-14 >/dev/null; then
    fail 2 "clang-tidy-14 is missing; scripts/setup.sh --dev installs it"
  fi
  scripts/check.sh --tidy-all || bad+=(clang-tidy)
fi
if [ ${#bad[@]} -gt 0 ]; then fail 1 "findings of ${bad[*]} (see above)"; fi
