#!/usr/bin/env bash
# scripts/cluster.sh [--nodes N] [--ranks-per-node R] [--rate RATE] [--delay TIME] [--loss PERCENT]
#                    [--reorder PERCENT] [--fault FAULT]... [--traffic FILE] [--shell] COMMAND...
# Runs COMMAND under mpirun on N nodes with R ranks each (default: 2 nodes with 1 rank). This machine emulates the
# nodes. Each node is a network namespace with its own host name, /dev/shm and share of the cores. A switch joins the
# nodes. They share files, as on a network file system. Exit code: COMMAND's, or 77 with the reason if this machine
# cannot emulate nodes. Requires root, or a kernel that permits user namespaces. Nothing outside the namespaces changes,
# and the kernel removes them when the script ends for any reason.
#   --rate RATE             rate of each link in each direction (1gbit)
#   --delay TIME            delay of each link in each direction, such as 2ms
#   --loss PERCENT          share of the packets that each link loses in each direction
#   --reorder PERCENT       share of the packets that each link delays by 2 ms more, so that later packets arrive first
#   --fault WHAT:NODE@WHEN  fails a node (counted from 0) while COMMAND runs. WHEN is a time after the start, such as
#                           3s, or a /REGEX/ that a line of COMMAND's output must match. With a /REGEX/, COMMAND's
#                           stderr goes to stdout. WHAT is one of: cut (the link carries nothing), slow (a tenth of the
#                           rate), drop (the link loses all packets, but its ends stay up), mend (ends cut, slow and
#                           drop), gone (cut, and all processes of the node are killed)
#   --traffic FILE          writes the bytes that the kernel counted on each node's link, as CSV
#   --shell                 runs COMMAND once, on the first node, from which mpirun can reach the others
# With --delay, --loss, --reorder or a fault "drop", a process (scripts/cluster/relay.py) is the switch. It forwards all
# packets, so the rate may be lower than RATE.
# shellcheck source=scripts/lib.sh
called_from=$PWD
source "$(dirname "$0")/lib.sh"

nodes=2
ranks_per_node=1
rate=1gbit
delay=
loss=
reorder=
faults=()
traffic=
shell=

# count OPTION TEXT: prints the text if it is an integer from 1 to 9999, else fails.
count() {
  if [[ ! $2 =~ ^[1-9][0-9]{0,3}$ ]]; then fail 1 "invalid value '$2' for $1: expected an integer from 1 to 9999"; fi
  echo "$2"
}

# check_fault FAULT: fails if FAULT, a value of --fault, is malformed or names a node that does not exist. Called before
# COMMAND starts, because COMMAND may end before the fault is due, and the invalid value would then go unnoticed.
check_fault() {
  if [[ ! $1 =~ ^(cut|slow|drop|mend|gone):([0-9]+)@([0-9.]+s|/.+/)$ ]]; then
    fail 1 "invalid value '$1' for --fault: expected cut, slow, drop, mend or gone, as in cut:1@3s or gone:1@/step 5/"
  fi
  if [ "${BASH_REMATCH[2]}" -ge "$nodes" ]; then fail 1 "--fault $1: expected a node from 0 to $((nodes - 1))"; fi
}

# seconds_of TIME: prints the time in seconds, or fails.
seconds_of() {
  if [[ ! $1 =~ ^([0-9]+\.?[0-9]*)(us|ms|s)$ ]]; then
    fail 1 "invalid value '$1' for --delay: expected a time such as 500us, 2ms or 0.1s"
  fi
  awk -v number="${BASH_REMATCH[1]}" -v unit="${BASH_REMATCH[2]}" \
    'BEGIN { print number * (unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : 1) }'
}

# percent OPTION TEXT: prints the text if it is a number from 0 to 100, else fails.
percent() {
  if [[ ! $2 =~ ^[0-9]{1,3}(\.[0-9]+)?$ ]] || ! awk -v number="$2" 'BEGIN { exit number > 100 }'; then
    fail 1 "invalid value '$2' for $1: expected a number from 0 to 100"
  fi
  echo "$2"
}

while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit ;;
    --shell) shell=1 ;;
    --nodes | --ranks-per-node | --rate | --delay | --loss | --reorder | --fault | --traffic)
      if [ $# -lt 2 ]; then fail 1 "missing value for $1 (see --help)"; fi
      case $1 in
        --nodes) nodes=$(count "$@") ;;
        --ranks-per-node) ranks_per_node=$(count "$@") ;;
        --rate) rate=$2 ;;
        --delay) delay=$(seconds_of "$2") ;;
        --loss) loss=$(percent "$@") ;;
        --reorder) reorder=$(percent "$@") ;;
        --fault) faults+=("$2") ;;
        --traffic) traffic=$2 ;;
      esac
      shift
      ;;
    -*) fail 1 "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
  shift
done
if [ $# -eq 0 ]; then fail 1 "missing command (see --help)"; fi
if [ "$nodes" -gt 250 ]; then fail 1 "invalid value $nodes for --nodes: expected at most 250"; fi
if [[ ! $rate =~ ^[0-9.]+[kmg]?bit$ ]]; then
  fail 1 "invalid value '$rate' for --rate: expected a rate such as 1gbit or 100mbit"
fi
for fault in "${faults[@]}"; do check_fault "$fault"; done

relay=
if [ -n "$delay$loss$reorder" ] || [[ "${faults[*]}" = *drop:* ]]; then relay=1; fi

cannot() { fail 77 "cannot emulate nodes here: $*"; }
for tool in ip tc unshare nsenter setpriv taskset mpirun ${relay:+python3}; do
  if ! command -v "$tool" >/dev/null; then cannot "$tool is missing; scripts/setup.sh installs it"; fi
done
namespaces=(--mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
if [ "$(id -u)" -ne 0 ]; then namespaces=(--user --map-root-user "${namespaces[@]}"); fi
if ! problem=$(unshare "${namespaces[@]}" true 2>&1); then
  cannot "this kernel permits no namespaces (${problem#unshare: })"
fi

# When this script ends, unshare is killed. When unshare ends, the kernel kills all processes in the namespaces.
settings=("nodes=$nodes" "ranks_per_node=$ranks_per_node" "rate=$rate" "relay=$relay" "delay=$delay"
  "loss=$loss" "reorder=$reorder" "shell=$shell" "traffic=$traffic"
  "called_from=$called_from" "faults=$(printf "%s\n" "${faults[@]}")")
setpriv --pdeathsig KILL unshare "${namespaces[@]}" scripts/cluster/inside.sh "${settings[@]}" -- "$@" </dev/null &
inside=$!
# timeout signals both this script and its process group, so the second signal may find no process to kill.
trap 'kill -KILL $inside 2>/dev/null || true; exit 143' TERM
trap 'kill -KILL $inside 2>/dev/null || true; exit 130' INT HUP
status=0
wait $inside || status=$?
exit $status
