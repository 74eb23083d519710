#!/usr/bin/env bash
# expect_failure.sh CODE SECONDS SENTENCE COMMAND...: runs the command and checks that it ends with that exit code, within
# that many seconds, says something that matches the extended regular expression, and leaves neither a file in /dev/shm
# nor a process behind. SENTENCE may be empty. What matches ALIQUOT_NOBODY_SAYS, if set, is not said.
set -u
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/../../scripts/runs.sh"
own_shared_memory "$@"
code=$1 limit=$2 sentence=$3
shift 3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
before=$(shared_names)
began=$(date +%s%N)
timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
ended=$?
if [ "$ended" = 77 ]; then cat "$log" && exit 77; fi  # the command cannot be run here: the test is skipped
now=$(date +%s%N)
took=$(((now - began) / 1000000))
failed=0
complain() {
  echo "expect_failure: $*"
  failed=1
}
[ "$ended" = "$code" ] || complain "exit code $ended, not $code"
[ "$ended" != 124 ] || complain "still running after $limit s"
if [ -n "$sentence" ] && [ "$sentence" != '.*' ] && ! grep -Eq -- "$sentence" "$log"; then complain "nobody said: $sentence"; fi
if [ -n "${ALIQUOT_NOBODY_SAYS:-}" ] && grep -Eq -- "$ALIQUOT_NOBODY_SAYS" "$log"; then
  complain "somebody said: $ALIQUOT_NOBODY_SAYS"
fi
if grep -q 'bytes were touched' "$log"; then complain "data was used"; fi
for file in $(comm -13 <(echo "$before") <(shared_names)); do complain "left /dev/shm/$file"; done
killed=$(sed -n 's/^killed at //p' "$log")
if [ -n "$killed" ]; then
  gone=$(((now - killed) / 1000000))
  echo "all gone $gone ms after the kill"
  [ "$gone" -lt "${ALIQUOT_GONE_MS:-3000}" ] || complain "it took $gone ms until all were gone"
fi
echo "took $took ms, exit code $ended"
grep -E '^aliquot: ' "$log"
[ "$failed" = 0 ] || sed 's/^/  | /' "$log"
exit "$failed"
