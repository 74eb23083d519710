#!/usr/bin/env bash
# That emulated nodes are what scripts/cluster.sh says: apart, as slow as asked for, counted, and gone afterwards.
# shellcheck disable=SC2016 # what the nodes' shells are to expand
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
before=$(ls /sys/class/net /dev/shm)

expect fail "--rattle" "$cluster" --rattle 1 true
expect fail "name a command" "$cluster" --nodes 2
expect fail "give a number from 1" "$cluster" --nodes two true
expect fail "250 are the most" "$cluster" --nodes 300 true
expect fail "write it as cut:1@3s" "$cluster" --fault broken:1@3s true
expect fail "the first is 0" "$cluster" --nodes 2 --fault cut:2@3s true
expect fail "give it as 1gbit" "$cluster" --rate much true

# Nodes have names, a /dev/shm and a network of their own; words and exit codes come through.
names=$("$cluster" --nodes 3 --ranks-per-node 2 sh -c 'hostname; touch "/dev/shm/$(hostname)"; test $(ls /dev/shm | grep -c ^node[0-9]$) = 1' | sort | tr '\n' ' ')
if [ "$names" != "node0 node0 node1 node1 node2 node2 " ]; then complain "the ranks ran on $names"; fi
expect pass "two words|x" "$cluster" --shell sh -c 'echo "$1|$2"' - "two words" x
status=0
"$cluster" sh -c 'exit 9' >/dev/null 2>&1 || status=$?
if [ $status -ne 9 ]; then complain "exit code $status, not 9"; fi

# What the kernel lacks is said, and is no failure.
status=0
"$cluster" --delay 2ms true 2>"$scratch/err" || status=$?
if [ $status -eq 77 ]; then says "$scratch/err" "no netem that makes --delay 2ms"; elif [ $status -ne 0 ]; then complain "--delay: exit code $status"; fi

# 25 MB from one node to the other over 200 Mbit/s take a second, and the kernel counts them.
began=$(date +%s%N)
"$cluster" --rate 200mbit --traffic "$scratch/traffic" \
  sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || head -c 25000000 /dev/zero' | wc -c >"$scratch/bytes"
took=$((($(date +%s%N) - began) / 1000000))
if [ "$(cat "$scratch/bytes")" -ne 25000000 ]; then complain "$(cat "$scratch/bytes") of 25000000 bytes came"; fi
if [ $took -lt 1000 ]; then complain "25 MB came in $took ms over 200 Mbit/s"; fi
awk -F, '$1 == "node1" { sent = $2 } $1 == "node0" { received = $3 }
  END { exit !(sent >= 25e6 && sent < 27e6 && received > 0.99 * sent && received < 1.01 * sent) }' "$scratch/traffic" || complain "counted otherwise" "$scratch/traffic"

# Killed, it leaves neither a process nor a link nor a file.
mark=9$$.5
"$cluster" --shell sleep $mark &
until pgrep -f "^sleep $mark" >/dev/null; do sleep 0.05; done
{ kill -KILL $! && wait $!; } 2>/dev/null || true
for ((round = 0; round < 40; ++round)); do if ! pgrep -f "^sleep $mark" >/dev/null; then break; fi; sleep 0.05; done
if pgrep -f "^sleep $mark" >/dev/null; then complain "a process outlived it"; fi
if [ "$(ls /sys/class/net /dev/shm)" != "$before" ]; then complain "a link or a file was left"; fi
exit $((failures > 0))
