#!/usr/bin/env bash
# inside.sh NAME=VALUE... -- COMMAND...: first process in the namespaces that scripts/cluster.sh creates. Creates the
# nodes and the switch, runs the command on the nodes, and returns its exit code. The switch is in the network namespace
# of this script: a bridge of the kernel, or relay.py if links delay, lose or reorder packets.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
nodes='' ranks_per_node='' rate='' relay='' delay='' loss='' reorder='' shell='' traffic='' called_from='' faults=''
while [ "$1" != -- ]; do
  declare "$1"
  shift
done
shift

# shared_cores: prints the cores that each node may use, as lists for taskset. Nodes share cores if there are fewer
# cores than nodes.
shared_cores() {
  local list range cores=() node
  list=$(awk '/^Cpus_allowed_list:/ {print $2}' /proc/self/status)
  for range in ${list//,/ }; do
    for ((core = ${range%-*}; core <= ${range#*-}; ++core)); do cores+=("$core"); done
  done
  local each=$((${#cores[@]} / nodes))
  for ((node = 0; node < nodes; ++node)); do
    if [ $each -eq 0 ]; then
      echo "${cores[node % ${#cores[@]}]}"
    else
      (IFS=, && echo "${cores[*]:node*each:each}")
    fi
  done
}

on() { # NODE COMMAND...
  local node=$1
  shift
  nsenter --target "${holders[node]}" --net --uts --ipc --mount -- "$@"
}

# burst_of RATE: prints the burst of a link in bytes: the data that it sends in 0.25 ms, but at least 16000. After a
# pause, a link with a larger burst would send more data at once than a real link does. With a smaller burst, the
# emulation of the link would need too much processor time.
burst_of() {
  awk -v number="${1%%[a-z]*}" -v unit="${1##*[0-9.]}" 'BEGIN {
    bits = number * (unit == "gbit" ? 1e9 : unit == "mbit" ? 1e6 : unit == "kbit" ? 1e3 : 1)
    bytes = int(bits / 8 * 0.00025)
    print bytes < 16000 ? 16000 : bytes
  }'
}

# shaped LINK RATE PREFIX...: limits the data sent on LINK to RATE, with a queue of 20 ms. PREFIX is the command that
# runs ip and tc, such as `on NODE`. TCP packets are at most half a burst. The switch would drop larger packets, and a
# step would wait for their retransmission.
shaped() {
  local link=$1 link_rate=$2 burst largest
  burst=$(burst_of "$link_rate")
  largest=$((burst / 2 < 16000 ? 16000 : burst / 2))
  shift 2
  "$@" ip link set dev "$link" gso_max_size $((largest < 65536 ? largest : 65536))
  # The kernel may hand several packets to the relay as one frame, which the relay would lose or delay as a whole.
  if [ -n "$relay" ]; then "$@" ip link set dev "$link" gso_max_segs 1; fi
  "$@" tc qdisc replace dev "$link" root handle 1: tbf rate "$link_rate" burst "$burst" latency 20ms
}

shape() { # NODE RATE
  shaped eth0 "$2" on "$1"
  shaped "port$1" "$2" env
}

make_node() { # NODE
  ip link add eth0 netns "${holders[$1]}" type veth peer name "port$1"
  if [ -z "$relay" ]; then ip link set "port$1" master switch; fi
  ip link set "port$1" up
  on "$1" hostname "node$1"
  on "$1" mount -t tmpfs -o mode=1777 node /dev/shm
  on "$1" ip link set lo up
  on "$1" ip addr add "10.0.0.$(($1 + 1))/24" dev eth0
  on "$1" ip link set eth0 up
  # Selects the TCP congestion control cubic, as on most clusters, if the kernel has it, and otherwise reno. Without
  # pacing, bbr stalls on a link with a limited rate.
  on "$1" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
    on "$1" sysctl -qw net.ipv4.tcp_congestion_control=reno
  shape "$1" "$rate"
}

make_nodes() {
  local node
  mount -t tmpfs -o mode=1777 switch /dev/shm
  cp /etc/hosts /dev/shm/hosts
  for ((node = 0; node < nodes; ++node)); do echo "10.0.0.$((node + 1)) node$node" >>/dev/shm/hosts; done
  mount --bind /dev/shm/hosts /etc/hosts
  ip link set lo up
  if [ -z "$relay" ]; then ip link add switch type bridge && ip link set switch up; fi
  for ((node = 0; node < nodes; ++node)); do
    unshare --net --uts --ipc --mount sleep infinity &
    holders[node]=$!
    disown  # suppresses the shell's message when the process is killed
  done
  for ((node = 0; node < nodes; ++node)); do
    # Wait until the process is in its own namespaces. Until then, its commands would run in those of this script.
    while [ "$(readlink "/proc/${holders[node]}/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.01; done
    make_node "$node"
  done
  if [ -n "$relay" ]; then start_relay; fi
}

start_relay() {
  local ports=()
  for ((node = 0; node < nodes; ++node)); do ports+=("port$node"); done
  "$here/relay.py" --delay "${delay:-0}" --loss "${loss:-0}" --reorder "${reorder:-0}" --drops /dev/shm/drops \
    --ready /dev/shm/ready "${ports[@]}" &
  relay_process=$!
  disown
  until [ -e /dev/shm/ready ]; do
    if ! kill -0 $relay_process 2>/dev/null; then
      echo "cluster.sh: cannot emulate nodes here: the relay between the links failed" >&2
      exit 77
    fi
    sleep 0.01
  done
}

# drop NODE yes|no: starts or ends the loss of all packets on the link of NODE.
drop() {
  if [ -z "$relay" ]; then return; fi
  {
    grep -vx "port$1" /dev/shm/drops 2>/dev/null || true
    if [ "$2" = yes ]; then echo "port$1"; fi
  } >/dev/shm/drops.new
  mv /dev/shm/drops.new /dev/shm/drops
  kill -HUP "$relay_process"
}

# Emulates a power failure. The other nodes must receive nothing, not even the end of a connection. So the link is cut
# before the processes are killed.
lose() { # NODE
  local its process
  its=$(readlink "/proc/${holders[$1]}/ns/net")
  ip link set "port$1" down
  for process in /proc/[0-9]*; do
    if [ "$(readlink "$process/ns/net")" = "$its" ]; then kill -KILL "${process#/proc/}" 2>/dev/null || true; fi
  done
}

tenth() { # RATE
  local number=${1%%[a-zA-Z]*}
  awk -v number="$number" -v unit="${1#"$number"}" 'BEGIN { print number / 10 unit }'
}

# bring FAULT: waits for the time or the line of output that FAULT specifies, then causes the fault.
bring() {
  local what=${1%%:*} node=${1#*:} when=${1#*@}
  node=${node%%@*}
  if [[ $when = /* ]]; then
    when=${when#/}
    until grep -Eq -- "${when%/}" "$output"; do sleep 0.02; done
  else
    sleep "${when%s}"
  fi
  echo "cluster.sh: $what node$node" >&2
  case $what in
    cut) ip link set "port$node" down ;;
    slow) shape "$node" "$(tenth "$rate")" ;;
    drop) drop "$node" yes ;;
    mend) ip link set "port$node" up && shape "$node" "$rate" && drop "$node" no ;;
    gone) lose "$node" ;;
  esac
}

report_traffic() {
  local node
  echo "node,sent_bytes,received_bytes"
  for ((node = 0; node < nodes; ++node)); do
    # The counters belong to the switch's port: bytes that the port received are bytes that the node sent.
    ip -s link show "port$node" |
      awk -v node="node$node" '/RX:/ { getline; rx = $1 } /TX:/ { getline; print node "," rx "," $1 }'
  done
}

start() { # COMMAND...: on the first node
  local words
  printf -v words '%q ' "$@"
  (cd "$called_from" && exec "$here/enter.sh" node0 "$words")
}

run() { # COMMAND...
  local launch=(mpirun -n $((nodes * ranks_per_node)))
  if [ -n "$shell" ]; then launch=(); fi
  if [ ! -e "$output" ]; then
    start "${launch[@]}" "$@"
  else
    start "${launch[@]}" "$@" 2>&1 | tee "$output"
  fi
}

# Configures mpirun by environment variables, which also apply if COMMAND calls mpirun itself.
tell_mpirun() {
  for ((node = 0; node < nodes; ++node)); do echo "node$node slots=$ranks_per_node"; done |
    on 0 tee /dev/shm/nodes >/dev/null
  export OMPI_MCA_orte_default_hostfile=/dev/shm/nodes
  export OMPI_MCA_plm_rsh_agent=$here/enter.sh OMPI_MCA_plm_rsh_no_tree_spawn=1
  export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
  # enter.sh binds each node to its cores. Open MPI would bind the ranks of every node to the first cores.
  export OMPI_MCA_hwloc_base_binding_policy=none
  # Open MPI does not detect that nodes share a core, so a waiting rank must yield.
  export OMPI_MCA_mpi_yield_when_idle=1
}

holders=()
make_nodes
mapfile -t cores < <(shared_cores)
export ALIQUOT_CLUSTER_HOLDERS="${holders[*]}" ALIQUOT_CLUSTER_CORES="${cores[*]}" TMPDIR=/dev/shm
tell_mpirun

output=/dev/shm/output
if [[ $faults = *@/* ]]; then : >"$output"; fi
while read -r fault; do
  if [ -n "$fault" ]; then bring "$fault" & fi
done <<<"$faults"
status=0
run "$@" || status=$?
if [ -n "$traffic" ]; then (cd "$called_from" && report_traffic >"$traffic"); fi
exit $status
