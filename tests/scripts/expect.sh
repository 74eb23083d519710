#!/usr/bin/env bash
# Sourced by the tests of scripts: a temporary folder that is removed at exit, and a function that checks a command.
set -euo pipefail
export top
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect pass|fail TEXT COMMAND...: checks that the command succeeds or fails, and that its output contains the text.
expect() {
  local wanted=$1 text=$2 ended=pass output
  shift 2
  output=$("$@" 2>&1) || ended=fail
  if [ "$ended" != "$wanted" ] || [[ $output != *"$text"* ]]; then
    printf 'expected %s with "%s", got %s from: %s\n%s\n' "$wanted" "$text" "$ended" "$*" "$output"
    failures=$((failures + 1))
  fi
}
