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

# By default Open MPI notices a lost node only after 300 + 9 x 20 s, and mpirun does not end earlier.
keepalive=(OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2)

# stamped: prefixes each line of its input with the time at which it read the line, in seconds since the script began.
stamped() {
  local line
  while IFS= read -r line; do echo "$SECONDS $line"; done
}

# An expression for the end of the message of ranks whose deadline expires in `ends`.
never_arrived="s in all-gather of 262144 bytes in place #[0-9]+ .h.1, step [0-9]+.; "
export never_arrived+="(rank [0-3] never arrived|the data of rank [0-3] never arrived)"

# ends FAULT RANKS_PER_NODE DEADLINE REGEX [OPTION...]: runs the program $ranks (failing_ranks) with options of
# cluster.sh. Checks that the job fails within 15 s of the fault with a message that matches REGEX, and that 1 s later
# no rank runs on any node.
ends() {
  local log=$scratch/log program=${ranks:?} what=$1 each=$2 deadline=$3 wanted=$4 fault_at ended_at
  shift 4
  # On each emulated node, ps lists the processes of all nodes.
  local after="echo ended \$?; sleep 1; ps -e -o comm= | grep -c ^${program##*/} | sed s/^/left:/"
  { env "${keepalive[@]}" timeout --kill-after=5 90 "$cluster" --ranks-per-node "$each" \
    --fault "$what:1@/met 50 /" "$@" --shell sh -c "mpirun -n $((2 * each)) '$program' runs_until_stopped $deadline; $after" 2>&1 || true; } | stamped >"$log"
  fault_at=$(awk -v said="cluster.sh: $what node1" 'index($0, said) { print $1; exit }' "$log")
  ended_at=$(awk '$2 == "ended" { print $1; exit }' "$log")
  local took=$((${ended_at:-999} - ${fault_at:-0}))
  echo "$what, $each ranks/node, deadline $deadline s: $took s, $(grep -oE '(ended|aliquot:).*' "$log" | head -n 2 | tr '\n' ' ')"
  says "$log" "cluster.sh: $what node1"
  says "$log" "^[0-9]+ ended [1-9]"
  says "$log" "$wanted"
  says "$log" "^[0-9]+ left:0$"
  if [ "$took" -gt 15 ]; then complain "the job ended $took s after the fault, expected at most 15" "$log"; fi
}
