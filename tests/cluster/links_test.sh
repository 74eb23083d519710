#!/usr/bin/env bash
# links_test.sh ALIQUOT FAILING_RANKS [all]: tests ranks on emulated nodes whose links delay, lose and reorder packets.
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
aliquot=$1 ranks=$2 all=${3:-}
status=0
"$cluster" --delay 1ms true || status=$?
if [ $status -eq 77 ]; then exit 77; fi

train=(train --layers 1 --width 16 --heads 2 --sequence 16 --context 16 --micro-batch 1 --threads 1 --timeout 60)

# facts FILE: prints the digest, and the planned and measured memory of each rank without the column of the memory
# outside of the plan, from the output of a run.
facts() {
  grep -E '^digest |planned|measured' "$1" | sed -E '/measured at most/d; s/(measured.* ) *[0-9.]+ [KMG]?i?B$/\1/'
}

nodes=()  # options of cluster.sh for the nodes of same_over

# same_over OPTIONS STEPS ARGUMENT...: checks that a run over links with the options of cluster.sh gives the same facts
# as over links without them.
same_over() {
  local options=$1 steps=$2 words
  shift 2
  read -ra words <<<"$options"
  "$cluster" "${nodes[@]}" "$aliquot" "${train[@]}" --steps "$steps" "$@" >"$scratch/wanted" 2>&1 ||
    complain "without $options: exit code $?" "$scratch/wanted"
  "$cluster" "${nodes[@]}" "${words[@]}" "$aliquot" "${train[@]}" --steps "$steps" "$@" >"$scratch/got" 2>&1 ||
    complain "with $options: exit code $?" "$scratch/got"
  says "$scratch/wanted" "^digest [0-9a-f]+"
  says "$scratch/wanted" "planned and measured agree to the byte"
  if ! diff <(facts "$scratch/wanted") <(facts "$scratch/got"); then
    complain "with $options, the digest or the memory differs" "$scratch/got"
  else
    echo "${nodes[*]} $options, $*: same digest and memory"
  fi
}

# counted OPTIONS: sends 500 kB from the first node to the second and back, over links with the options of cluster.sh.
# Prints the TCP counters RetransSegs and TCPOFOQueue of the first node: packets sent again and received out of order.
counted() {
  local words
  read -ra words <<<"$1"
  # shellcheck disable=SC2016 # the shell of the node expands this
  "$cluster" "${words[@]}" --shell sh -c 'head -c 500000 /dev/zero | mpirun -n 2 --stdin 1 cat | wc -c >&2
    cat /proc/net/snmp /proc/net/netstat' 2>"$scratch/bytes" | awk '
      $1 == section { for (i = 2; i <= NF; ++i) value[name[i]] = $i; section = ""; next }
      { section = $1; for (i = 2; i <= NF; ++i) name[i] = $i }
      END { print value["RetransSegs"], value["TCPOFOQueue"] }'
  says "$scratch/bytes" "^500000$"
}

# The links have the properties that were asked for.
read -r sent_again _ <<<"$(counted "--loss 2")"
if [ "$sent_again" -lt 3 ]; then complain "--loss 2: $sent_again packets were sent again, expected at least 3"; fi
read -r sent_again out_of_order <<<"$(counted "--reorder 20")"
if [ "$out_of_order" -lt 10 ]; then
  complain "--reorder 20: $out_of_order packets arrived out of order, expected at least 10"
fi
began=$(date +%s%N)
"$cluster" --delay 50ms true
took=$((($(date +%s%N) - began) / 1000000))
# The launcher connects to the second node and gets an answer: two round trips over two links each.
if [ $took -lt 400 ]; then complain "--delay 50ms: mpirun took $took ms, expected at least 400"; fi
echo "$out_of_order packets out of order; mpirun with a delay of 50 ms: $took ms"

same_over "--delay 2ms --loss 1 --reorder 5" 3 --zero-stage 3
# The link loses every packet, but its ends stay up.
ends drop 1 2 "waited 2 $never_arrived" --delay 1ms
if [ "$all" = all ]; then
  for stage in 0 1 2 3; do same_over "--delay 1ms --loss 2 --reorder 10" 4 --zero-stage $stage; done
  same_over "--delay 1ms --loss 2 --reorder 10" 4 --zero-stage 3 --quantize both
  same_over "--delay 1ms --loss 2 --reorder 10" 4 --pipeline 2
  same_over "--delay 50ms" 3 --zero-stage 3
  nodes=(--ranks-per-node 2)
  same_over "--delay 1ms --loss 2 --reorder 10" 4 --zero-stage 3 --replicas 2
  nodes=(--nodes 4)
  same_over "--delay 1ms --loss 2 --reorder 10" 4 --zero-stage 3
  # Without loss: with the short keepalive of `ends`, mpirun takes a node whose probes are lost for a failed one.
  ends drop 2 2 "waited 2 $never_arrived" --delay 1ms --reorder 10
fi
exit $((failures > 0))
