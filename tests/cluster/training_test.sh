#!/usr/bin/env bash
# training_test.sh ALIQUOT NODES RANKS_PER_NODE: checks that training on emulated nodes gives the same bits as training
# on an equal number of threads: at every ZeRO stage, with replicas, and when a run resumes from a checkpoint.
# shellcheck source=tests/cluster/nodes.sh
source "$(dirname "$0")/nodes.sh"
aliquot=$1 nodes=$2 each=$3 ranks=$(($2 * $3))
train=(train --quiet --layers 2 --threads 1 --timeout 60)

over_nodes() { "$cluster" --nodes "$nodes" --ranks-per-node "$each" "$aliquot" "${train[@]}" "$@"; }

# same DIGEST CASE COMMAND...: checks that the command prints the digest. CASE is the name of the check in messages.
same() {
  local wanted=$1 what=$2 got
  shift 2
  got=$("$@" 2>"$scratch/err") || complain "$what: exit code $?" "$scratch/err"
  if [ "$got" = "$wanted" ]; then
    echo "$what: equal digests"
  else
    complain "$what: digest $got, expected $wanted" "$scratch/err"
  fi
}

# Accumulation in a replica's shard changes the order of sums. With one micro-batch there is no accumulation.
wanted=$("$aliquot" "${train[@]}" --steps 4 --ranks "$ranks")
for stage in 0 1 2 3; do same "$wanted" "ZeRO stage $stage" over_nodes --steps 4 --zero-stage $stage; done
for replicas in $nodes $ranks; do
  for stage in 0 1 3; do
    same "$wanted" "ZeRO stage $stage, $replicas replicas" \
      over_nodes --steps 4 --zero-stage $stage --replicas "$replicas"
  done
done
same "$wanted" "--recompute block --prefetch 2" over_nodes --steps 4 --recompute block --prefetch 2

# The result of quantization depends on the number of ranks per node, so the run on threads needs that number.
for quantize in weights gradients both; do
  rounded=$(ALIQUOT_RANKS_PER_NODE=$each "$aliquot" "${train[@]}" --steps 4 --ranks "$ranks" --quantize $quantize)
  if [ "$rounded" = "$wanted" ]; then complain "--quantize $quantize gives the digest of the run without it"; fi
  same "$rounded" "$quantize in 8 bits" over_nodes --steps 4 --quantize $quantize
done
rounded=$(ALIQUOT_RANKS_PER_NODE=$each "$aliquot" "${train[@]}" --steps 4 --ranks "$ranks" --quantize gradients \
  --replicas "$nodes")
same "$rounded" "one replica per node, gradients in 8 bits" \
  over_nodes --steps 4 --quantize gradients --replicas "$nodes"

# Threads and nodes each resume from a checkpoint that several nodes wrote, and nodes from one that threads wrote.
saved=$scratch/saved
over_nodes --steps 4 --stop-after 2 --checkpoint-dir "$saved" >/dev/null ||
  complain "saving a checkpoint over nodes: exit code $?"
cp -r "$saved" "$saved.threads"
same "$wanted" "resumed over nodes" over_nodes --steps 4 --checkpoint-dir "$saved" --resume auto
same "$wanted" "resumed by threads" \
  "$aliquot" "${train[@]}" --steps 4 --ranks "$ranks" --checkpoint-dir "$saved.threads" --resume auto
"$aliquot" "${train[@]}" --steps 4 --stop-after 2 --ranks "$ranks" --checkpoint-dir "$saved.there" >/dev/null
same "$wanted" "resumed from a checkpoint of threads" \
  over_nodes --steps 4 --zero-stage 2 --checkpoint-dir "$saved.there" --resume auto
"$aliquot" checkpoint verify "$saved" >"$scratch/verify" ||
  complain "the checkpoint that the nodes saved is not valid" "$scratch/verify"
for folder in step-00000002 step-00000004; do
  cmp "$saved/$folder/state.h5" "$saved.threads/$folder/state.h5" ||
    complain "$folder: nodes and threads wrote different files"
done
exit $((failures > 0))
