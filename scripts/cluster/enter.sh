#!/usr/bin/env bash
# enter.sh NODE COMMAND...: runs the command, words of a shell, on an emulated node, on the cores that are its share. mpirun
# calls it where it would call ssh.
set -eu
node=${1#node}
shift
read -ra holders <<<"$ALIQUOT_CLUSTER_HOLDERS"
read -ra cores <<<"$ALIQUOT_CLUSTER_CORES"
exec taskset --cpu-list "${cores[node]}" nsenter --target "${holders[node]}" --net --uts --ipc --mount --wd="$PWD" -- \
  /bin/bash -c "$*"
