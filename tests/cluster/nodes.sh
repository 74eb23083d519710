#!/usr/bin/env bash
# Sourced by the tests that run over emulated nodes: where a machine cannot emulate any they end with 77, which ctest takes for
# skipped.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/expect.sh"
cluster=$top/scripts/cluster.sh

status=0
"$cluster" true || status=$?
if [ $status -eq 77 ]; then exit 77; fi

# complain SENTENCE [FILE]
complain() {
  echo "wrong: $1"
  if [ -n "${2:-}" ]; then tail -n 30 "$2" | sed 's/^/  | /'; fi
  failures=$((failures + 1))
}

# says FILE REGEX: some line of it matches.
says() { grep -Eq -- "$2" "$1" || complain "nobody said: $2" "$1"; }
