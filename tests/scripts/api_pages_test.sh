#!/usr/bin/env bash
# Tests that api_pages.py --check finds pages that differ from the headers, and writes what the headers declare.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
if ! command -v python3 >/dev/null; then echo "skipped: python3 is missing" && exit 77; fi

# edited FILE SED COMMAND...: copies the headers and pages, edits FILE with the sed expression, and runs the command.
# shellcheck disable=SC2317  # expect calls it
edited() {
  local file=$1 expression=$2
  shift 2
  rm -rf "${scratch:?}"/*
  (cd "$top" && git ls-files -- '*.h' docs/api cmake/AliquotPublicHeaders.cmake | xargs cp -r --parents -t "$scratch")
  sed -i "$expression" "$scratch/$file"
  "$@"
}
# shellcheck disable=SC2317
check() { "$top/scripts/api_pages.py" --check "$scratch"; }
# written PAGE: writes the pages and prints one of them.
# shellcheck disable=SC2317
written() { "$top/scripts/api_pages.py" "$scratch" && cat "$scratch/docs/api/$1"; }

expect pass "" edited docs/api/engine.md '' check
expect fail "docs/api/engine.md: differs from the comments" edited docs/api/engine.md 's/Declares a unit/Adds a unit/' check
expect fail "docs/api/scope.md: differs" edited engine/scope.h 's/Represents one micro-batch/Is one micro-batch/' check
expect fail "docs/api/options.md: differs" edited engine/options.h 's/int prefetch = 1/int prefetch = 2/' check
expect fail "docs/api/sparkle.md: differs" edited docs/api/log.md "w $scratch/docs/api/sparkle.md" check
expect fail "engine/sparkle.h: is a public header without a page" \
  edited cmake/AliquotPublicHeaders.cmake 's,engine/scope.h,engine/sparkle.h &,' check
expect pass "void sparkle(int how);" edited engine/engine.h 's/^  void abandon();/&\n  void sparkle(int how) { how_ = how; }/' \
  written engine.md
expect pass "void abandon();" edited engine/engine.h 's,^  void abandon();,  virtual void sparkle(int /*how*/) {}\n\n&,' \
  written engine.md
expect pass "int sparkle = 1;" edited sharding/topology.h 's,^  bool over_nccl.*,&\n  int sparkle = 1;  // as Sparkle::how,' \
  written topology.md
expect pass "Sparkles." edited engine/engine.h 's,^  void abandon();,&\n\n  /// Sparkles.\n  void sparkle(int how);,' written engine.md
# Private members, deleted functions and bodies have no place on a page.
for hidden in "engine_" "= delete" "return index_" "class Session"; do
  expect fail "" grep -qF -- "$hidden" "$top/docs/api/engine.md"
done
exit $((failures > 0))
