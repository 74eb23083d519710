#!/usr/bin/env bash
# enter.sh NODE COMMAND...: runs a shell command on an emulated node, on that node's share of the cores. mpirun calls
# this script instead of ssh.
set -eu
node=${1#node}
shift
read -ra holders <<<"$ALIQUOT_CLUSTER_HOLDERS"
read -ra cores <<<"$ALIQUOT_CLUSTER_CORES"
exec taskset --cpu-list "${cores[node]}" nsenter --target "${holders[node]}" --net --uts --ipc --mount --wd="$PWD" -- \
  /bin/bash -c "$*"
