#!/usr/bin/env bash
# faults_test.sh FAILING_RANKS [all]: tests ranks on emulated nodes when a link is cut or slow, or a node fails.
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
ranks=$1

# Either the ranks' deadline or the launcher's expires first. The message names a rank of the failed node, or the node.
missing="waited 2 $never_arrived"
ends cut 1 2 "$missing"
ends gone 2 20 "Remote daemon: .* on node node1"
if [ "${2:-}" = all ]; then
  ends gone 1 2 "$missing"
  ends gone 2 2 "$missing"
  ends cut 1 20 "Remote daemon: .* on node node1"
fi

# A slow link, or a cut shorter than the deadline, is not a failure. The fault begins after 50 collectives, and the
# ranks must complete the next 50 within 5 s.
goes_on_after() { # FAULT...
  local log=$scratch/log words=() fault status=0 met=0 fault_at=''
  for fault in "$@"; do words+=(--fault "$fault"); done
  timeout --kill-after=5 90 "$cluster" "${words[@]}" "$ranks" runs_until_stopped 20 >"$log" 2>&1 &
  while kill -0 $! 2>/dev/null && [ "$met" -lt 100 ]; do
    sleep 0.2
    met=$(grep -c '^met ' "$log" || true)
    if [ -z "$fault_at" ] && [ "$met" -ge 50 ]; then fault_at=$SECONDS; fi
  done
  local took=$((SECONDS - ${fault_at:-0}))
  kill $! 2>/dev/null || complain "after $* the job ended before it was stopped" "$log"
  wait $! || status=$?
  echo "$*: $met collectives, the last 50 of them in $took s"
  if [ "$took" -gt 5 ]; then complain "after $* 50 collectives took $took s, expected at most 5" "$log"; fi
  if [ $status -ne 124 ] && [ $status -ne 143 ]; then
    complain "after $*: exit code $status, expected 124 or 143" "$log"
  fi
  if [ "$met" -lt 100 ]; then complain "after $* the ranks completed $met collectives, expected 100" "$log"; fi
  if grep -q '^aliquot: ' "$log"; then complain "after $* ranks failed" "$log"; fi
}
goes_on_after "slow:1@/met 50 /"
if [ "${2:-}" = all ]; then goes_on_after "cut:1@/met 50 /" "mend:1@2.5s"; fi
exit $((failures > 0))
