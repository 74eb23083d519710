#!/usr/bin/env bash
# scripts/cluster.sh [--nodes N] [--ranks-per-node R] [--rate RATE] [--delay TIME] [--fault FAULT]... [--traffic FILE] COMMAND...
# Runs COMMAND under mpirun on nodes that are emulated on this machine (2 of 1 rank): network namespaces, each with a host
# name, a /dev/shm and a share of the cores of its own, joined by a switch over links of RATE in each direction (1gbit), and TIME
# later where the kernel has netem. Files are shared, as by a network file system.
#   --fault WHAT:NODE@WHEN  what happens to a node (counted from 0) while COMMAND runs, WHEN: so many seconds (3s) after its
#                           start, or when a line of its output matches /REGEX/ (what COMMAND says then comes on standard output).
#                           cut: its link carries nothing; slow: a tenth; mend: what it did; gone: cut, and all of it dies
#   --traffic FILE          bytes that the kernel counted on each node's link, as CSV
#   --shell                 COMMAND runs once, on the first node, where mpirun knows the others
# Ends as COMMAND does; 77: this machine cannot do it, and why. Needs root, or a kernel that lets anybody make namespaces.
# Nothing outside the namespaces is touched, and all of it lives in a process namespace, which the kernel clears when this
# script ends, however it ends.
# shellcheck source=scripts/lib.sh
called_from=$PWD
source "$(dirname "$0")/lib.sh"

nodes=2
ranks_per_node=1
rate=1gbit
delay=
faults=()
traffic=
shell=

# count OPTION TEXT: the text, if it is a number from 1.
count() { if [[ $2 =~ ^[1-9][0-9]{0,3}$ ]]; then echo "$2"; else fail 1 "$1 $2: give a number from 1"; fi; }

# A fault that is spelled wrongly would never come.
check_fault() {
  if [[ ! $1 =~ ^(cut|slow|mend|gone):([0-9]+)@([0-9.]+s|/.+/)$ ]]; then
    fail 1 "--fault $1: write it as cut:1@3s or gone:1@/step 5/; there are cut, slow, mend and gone"
  fi
  if [ "${BASH_REMATCH[2]}" -ge "$nodes" ]; then fail 1 "--fault $1: there are $nodes nodes, the first is 0"; fi
}

while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit ;;
    --shell) shell=1 ;;
    --nodes | --ranks-per-node | --rate | --delay | --fault | --traffic)
      if [ $# -lt 2 ]; then fail 1 "$1 wants a value (see --help)"; fi
      case $1 in
        --nodes) nodes=$(count "$@") ;;
        --ranks-per-node) ranks_per_node=$(count "$@") ;;
        --rate) rate=$2 ;;
        --delay) delay=$2 ;;
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
if [ $# -eq 0 ]; then fail 1 "name a command to run (see --help)"; fi
if [ "$nodes" -gt 250 ]; then fail 1 "--nodes $nodes: 250 are the most"; fi
if [[ ! $rate =~ ^[0-9.]+[kmg]?bit$ ]]; then fail 1 "--rate $rate: give it as 1gbit or 100mbit"; fi
for fault in "${faults[@]}"; do check_fault "$fault"; done

cannot() { fail 77 "cannot emulate nodes here: $*"; }
for tool in ip tc unshare nsenter setpriv taskset mpirun; do
  if ! command -v $tool >/dev/null; then cannot "$tool is missing; scripts/setup.sh installs it"; fi
done
namespaces=(--mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
if [ "$(id -u)" -ne 0 ]; then namespaces=(--user --map-root-user "${namespaces[@]}"); fi
if ! problem=$(unshare "${namespaces[@]}" true 2>&1); then cannot "no namespaces (${problem#unshare: })"; fi

# What runs inside dies with unshare, and unshare with us.
settings=("nodes=$nodes" "ranks_per_node=$ranks_per_node" "rate=$rate" "delay=$delay" "shell=$shell" "traffic=$traffic"
  "called_from=$called_from" "faults=$(printf "%s\n" "${faults[@]}")")
setpriv --pdeathsig KILL unshare "${namespaces[@]}" scripts/cluster/inside.sh "${settings[@]}" -- "$@" </dev/null &
inside=$!
# A second signal, such as timeout sends to us and to our group, finds nobody left to kill.
trap 'kill -KILL $inside 2>/dev/null || true; exit 143' TERM
trap 'kill -KILL $inside 2>/dev/null || true; exit 130' INT HUP
status=0
wait $inside || status=$?
exit $status
