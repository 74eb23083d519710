#!/usr/bin/env bash
# expect_failure.sh CODE SECONDS SENTENCE COMMAND...: runs COMMAND and checks these conditions:
# - COMMAND ends with exit code CODE within SECONDS seconds.
# - A line of its output matches the extended regular expression SENTENCE. This is not checked if SENTENCE is empty.
# - No line of its output matches ALIQUOT_FORBIDDEN_OUTPUT, if that variable is set.
# - If COMMAND prints "killed at NANOSECONDS", it ends within ALIQUOT_GONE_MS milliseconds (default 3000) of that time.
# - COMMAND leaves no file in /dev/shm.
set -u
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/../../scripts/runs.sh"
own_shared_memory "$@"
code=$1 limit=$2 sentence=$3
shift 3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
before=$(shared_names)
# If a rank exits while other ranks wait in MPI_Init() or MPI_Finalize(), Open MPI 4.1's mpiexec sometimes reports the
# exit code of the rank and then crashes or hangs itself. The command then runs again, at most twice.
mpiexec_failed_after_job() {
  [[ $ended != "$code" && $ended =~ ^(124|137|139)$ ]] &&
    grep -q '^mpiexec detected that .* exited with non-zero status' "$log" && grep -Eq "^ *Exit code: +$code\$" "$log"
}
for ((run = 1; run <= 3; ++run)); do
  began=$(date +%s%N)
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
  ended=$?
  mpiexec_failed_after_job || break
  echo "expect_failure: mpiexec reported exit code $code of a rank, and then failed itself (run $run)"
done
if [ "$ended" = 77 ]; then cat "$log" && exit 77; fi  # the command cannot run here, so the test is skipped
now=$(date +%s%N)
took=$(((now - began) / 1000000))
failed=0
complain() {
  echo "expect_failure: $*"
  failed=1
}
[ "$ended" = "$code" ] || complain "exit code $ended, expected $code"
[ "$ended" != 124 ] || complain "the command was still running after $limit s"
if [ -n "$sentence" ] && [ "$sentence" != '.*' ] && ! grep -Eq -- "$sentence" "$log"; then
  complain "no line of the output matches: $sentence"
fi
if [ -n "${ALIQUOT_FORBIDDEN_OUTPUT:-}" ] && grep -Eq -- "$ALIQUOT_FORBIDDEN_OUTPUT" "$log"; then
  complain "a line of the output must not match: $ALIQUOT_FORBIDDEN_OUTPUT"
fi
if grep -q 'bytes were touched' "$log"; then complain "a rank used the data of a failed collective"; fi
for file in $(comm -13 <(echo "$before") <(shared_names)); do complain "the command left /dev/shm/$file"; done
killed=$(sed -n 's/^killed at //p' "$log")
if [ -n "$killed" ]; then
  after_kill=$(((now - killed) / 1000000))
  echo "all processes ended $after_kill ms after the kill"
  most=${ALIQUOT_GONE_MS:-3000}
  [ "$after_kill" -lt "$most" ] || complain "processes ended $after_kill ms after the kill, expected less than $most ms"
fi
echo "took $took ms, exit code $ended"
grep -E '^aliquot: ' "$log"
[ "$failed" = 0 ] || sed 's/^/  | /' "$log"
exit "$failed"
