#!/usr/bin/env bash
# Checks that emulated nodes are separate, have the requested link rate and byte counts, and leave nothing behind.
# shellcheck disable=SC2016 # the shells of the nodes expand these
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
before=$(ls /sys/class/net /dev/shm)

expect fail "--rattle" "$cluster" --rattle 1 true
expect fail "missing command" "$cluster" --nodes 2
expect fail "invalid value 'two' for --nodes" "$cluster" --nodes two true
expect fail "expected at most 250" "$cluster" --nodes 300 true
expect fail "invalid value 'broken:1@3s' for --fault" "$cluster" --fault broken:1@3s true
expect fail "expected a node from 0 to 1" "$cluster" --nodes 2 --fault cut:2@3s true
expect fail "invalid value 'much' for --rate" "$cluster" --rate much true
expect fail "invalid value '2' for --delay: expected a time such as 500us" "$cluster" --delay 2 true
expect fail "invalid value '101' for --loss: expected a number from 0 to 100" "$cluster" --loss 101 true
expect fail "invalid value 'x' for --reorder" "$cluster" --reorder x true

# Nodes have their own names, /dev/shm and network. Arguments and exit codes pass through unchanged.
names=$("$cluster" --nodes 3 --ranks-per-node 2 \
  sh -c 'hostname; touch "/dev/shm/$(hostname)"; test $(ls /dev/shm | grep -c ^node[0-9]$) = 1' | sort | tr '\n' ' ')
if [ "$names" != "node0 node0 node1 node1 node2 node2 " ]; then
  complain "the ranks ran on $names, expected 2 on each of 3 nodes"
fi
expect pass "two words|x" "$cluster" --shell sh -c 'echo "$1|$2"' - "two words" x
status=0
"$cluster" sh -c 'exit 9' >/dev/null 2>&1 || status=$?
if [ $status -ne 9 ]; then complain "exit code $status, expected 9"; fi

# If a tool is missing, cluster.sh names it and exits with 77, which means a skipped test.
mkdir "$scratch/tools"
for tool in bash dirname realpath id awk sed ip tc unshare nsenter setpriv taskset mpirun; do
  ln -s "$(command -v $tool)" "$scratch/tools/$tool"
done
status=0
PATH=$scratch/tools "$cluster" --delay 2ms true 2>"$scratch/err" || status=$?
if [ $status -ne 77 ]; then complain "without python3: exit code $status, expected 77" "$scratch/err"; fi
says "$scratch/err" "cannot emulate nodes here: python3 is missing"

# Sending 25 MB between nodes at 200 Mbit/s takes a second, and the kernel counts the bytes.
began=$(date +%s%N)
"$cluster" --rate 200mbit --traffic "$scratch/traffic" \
  sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || head -c 25000000 /dev/zero' | wc -c >"$scratch/bytes"
took=$((($(date +%s%N) - began) / 1000000))
if [ "$(cat "$scratch/bytes")" -ne 25000000 ]; then complain "$(cat "$scratch/bytes") of 25000000 bytes arrived"; fi
if [ $took -lt 1000 ]; then complain "25 MB took $took ms at 200 Mbit/s, expected at least 1000"; fi
awk -F, '$1 == "node1" { sent = $2 } $1 == "node0" { received = $3 }
  END { exit !(sent >= 25e6 && sent < 27e6 && received > 0.99 * sent && received < 1.01 * sent) }' "$scratch/traffic" ||
  complain "--traffic did not count about 25 MB sent and received" "$scratch/traffic"

# When killed, the script leaves no process, link or file.
mark=9$$.5
"$cluster" --shell sleep $mark &
until pgrep -f "^sleep $mark" >/dev/null; do sleep 0.05; done
{ kill -KILL $! && wait $!; } 2>/dev/null || true
for ((round = 0; round < 40; ++round)); do
  if ! pgrep -f "^sleep $mark" >/dev/null; then break; fi
  sleep 0.05
done
if pgrep -f "^sleep $mark" >/dev/null; then complain "a process still runs after cluster.sh was killed"; fi
if [ "$(ls /sys/class/net /dev/shm)" != "$before" ]; then
  complain "a link or a file remains after cluster.sh was killed"
fi
exit $((failures > 0))
