#!/usr/bin/env bash
# faults_test.sh FAILING_RANKS [all]: tests ranks on emulated nodes when a link is cut or slow, or a node fails.
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
ranks=$1

# By default Open MPI notices a lost node only after 300 + 9 x 20 s, and mpirun does not end earlier.
keepalive=(OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2)

# stamped: prefixes each line of its input with the time at which it read the line, in seconds since the script began.
stamped() {
  local line
  while IFS= read -r line; do echo "$SECONDS $line"; done
}

# ends FAULT RANKS_PER_NODE DEADLINE REGEX: checks that the job fails within 15 s of the fault with a message that
# matches REGEX, and that 1 s later no rank runs on any node.
ends() {
  local log=$scratch/log fault_at ended_at
  # On each emulated node, ps lists the processes of all nodes.
  local after="echo ended \$?; sleep 1; ps -e -o comm= | grep -c ^${ranks##*/} | sed s/^/left:/"
  { env "${keepalive[@]}" timeout --kill-after=5 90 "$cluster" --ranks-per-node "$2" --fault "$1:1@/met 50 /" \
    --shell sh -c "mpirun -n $((2 * $2)) '$ranks' runs_until_stopped $3; $after" 2>&1 || true; } | stamped >"$log"
  fault_at=$(awk -v said="cluster.sh: $1 node1" 'index($0, said) { print $1; exit }' "$log")
  ended_at=$(awk '$2 == "ended" { print $1; exit }' "$log")
  local took=$((${ended_at:-999} - ${fault_at:-0}))
  echo "$1, $2 ranks/node, deadline $3 s: $took s, $(grep -oE '(ended|aliquot:).*' "$log" | head -n 2 | tr '\n' ' ')"
  says "$log" "cluster.sh: $1 node1"
  says "$log" "^[0-9]+ ended [1-9]"
  says "$log" "$4"
  says "$log" "^[0-9]+ left:0$"
  if [ "$took" -gt 15 ]; then complain "the job ended $took s after the fault, expected at most 15" "$log"; fi
}

# Either the ranks' deadline or the launcher's expires first. The message names a rank of the failed node, or the node.
missing="waited 2 s in all-gather of 262144 bytes in place #[0-9]+ .h.1, step [0-9]+.; "
missing+="(rank [0-3] never arrived|the data of rank [0-3] never arrived)"
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
