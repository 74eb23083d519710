#!/usr/bin/env bash
# scripts/analyse.sh [cppcheck | tidy]
# What reads the sources for mistakes and takes too long for every change: cppcheck, minutes, and clang-tidy over all sources, an
# hour or more on two cores. A word does one of them alone. What is chosen, and what is left out: .clang-tidy, and below for cppcheck.
# A complaint that is mistaken is answered where it is made, with a reason. scripts/setup.sh --dev installs the tools.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

which=${1:-all}
case $which in
  --help | -h) usage && exit ;;
  all | cppcheck | tidy) ;;
  *) fail 1 "unknown word $which (see --help)" ;;
esac
bad=()

# Style is other checks' business. cppcheck does not look into systems' headers, and needs none of them. In tests it would take
# GoogleTest's macros for functions. What it only guesses at, others know: uses of what was moved
# (`Thing(std::move(other)).swap(*this)` is none) and large things passed by value, of which it sees no size, are clang-tidy's;
# that what is handed out outlives its view is the address sanitizer's, which follows the bytes.
run_cppcheck() {
  local folders=(kernels sharding optim checkpoint engine capi apps)
  # The examples are programs of their own, with names of their own.
  cppcheck --enable=warning,performance,portability --inline-suppr --std=c++20 --language=c++ --quiet -j "$(core_count)" \
    -I . -I include -i apps/examples --suppress=missingIncludeSystem --suppress=accessMoved --suppress=passedByValue \
    --suppress=invalidLifetime --suppress=returnDanglingLifetime --error-exitcode=1 --template='{file}:{line}: {severity}: {message} [{id}]' \
    "${folders[@]}"
}

if [ "$which" != tidy ]; then
  if ! command -v cppcheck >/dev/null; then fail 2 "cppcheck is missing; scripts/setup.sh --dev installs it"; fi
  if run_cppcheck; then echo "ok: cppcheck"; else bad+=(cppcheck); fi
fi
if [ "$which" != cppcheck ]; then
  if ! command -v clang-tidy-14 >/dev/null; then fail 2 "clang-tidy-14 is missing; scripts/setup.sh --dev installs it"; fi
  scripts/check.sh --tidy-all || bad+=(clang-tidy)
fi
if [ ${#bad[@]} -gt 0 ]; then fail 1 "complaints of ${bad[*]} (above)"; fi
