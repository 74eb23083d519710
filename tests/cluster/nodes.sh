#!/usr/bin/env bash
# The tests on emulated nodes source this file. If this machine cannot emulate nodes, the file ends the test with exit
# code 77, which ctest reports as skipped.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/expect.sh"
cluster=$top/scripts/cluster.sh

status=0
"$cluster" true || status=$?
if [ $status -eq 77 ]; then exit 77; fi

# complain MESSAGE [FILE]: reports a failed check, with the last lines of the file.
complain() {
  echo "failed: $1"
  if [ -n "${2:-}" ]; then tail -n 30 "$2" | sed 's/^/  | /'; fi
  failures=$((failures + 1))
}

# says FILE REGEX: checks that a line of the file matches REGEX.
says() { grep -Eq -- "$2" "$1" || complain "no line matches: $2" "$1"; }
