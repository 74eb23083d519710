#!/usr/bin/env bash
# Tests that write_commit.cmake writes the commit of a repository, and no commit outside of one.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
sources=$scratch/sources
mkdir -p "$sources/inner"
git() { command git -C "$sources" -c user.name=test -c user.email=test@example.org "$@"; }

# written ARGUMENTS...: prints the commit that the written source returns.
# shellcheck disable=SC2317  # expect calls it
written() {
  cmake "-DOUTPUT=$scratch/commit.cpp" "$@" -P "$top/cmake/write_commit.cmake" &&
    sed -n 's/.*return "\(.*\)".*/commit=\1./p' "$scratch/commit.cpp"
}

expect pass "commit=." written "-DSOURCES=$sources"
git init -q
echo 1 >"$sources/file"
git add file
git commit -q -m "Add a file"
head=$(git rev-parse --short=12 HEAD)
expect pass "commit=$head." written "-DSOURCES=$sources"
git tag v9
expect pass "commit=$head." written "-DSOURCES=$sources"
expect pass "commit=." written "-DSOURCES=$sources/inner"
expect pass "commit=1234567." written "-DSOURCES=$sources" -DCOMMIT=1234567
echo 2 >"$sources/file"
expect pass "commit=$head-dirty." written "-DSOURCES=$sources"

# An unchanged file is not written again, so that nothing is compiled again.
touch -d 2001-01-01 "$scratch/commit.cpp"
expect pass "" written "-DSOURCES=$sources"
expect pass "2001" date -r "$scratch/commit.cpp" +%Y
exit $((failures > 0))
