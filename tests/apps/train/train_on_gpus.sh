#!/usr/bin/env bash
# train_on_gpus.sh PROGRAM [nccl]: runs `aliquot train --device cuda` on real or simulated GPUs. The digest must be
# equal at every ZeRO stage, after a resume and, with the argument nccl (which needs one GPU per rank), over NCCL.
# Losses must be close to those of a host, and measured memory must equal planned memory. Ranks may share a GPU.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
shape=(--layers 1 --width 16 --heads 2 --sequence 12 --context 12 --vocab 53 --micro-batch 1)
small=("${shape[@]}" --steps 3 --warmup 0 --lr 0.01 --quiet)

fail() {
  echo "train_on_gpus.sh: $*" >&2
  exit 1
}
train() { "$program" train "${small[@]}" "$@"; }
digest() { train --device cuda "$@" | sed -n 's/^digest //p'; }
losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1"; }

first=$(digest --ranks 2 --zero-stage 0 --metrics "$folder/gpu.jsonl")
[ ${#first} -eq 64 ] || fail "the first run printed no valid digest: '$first'"
grep -q '"precision":"bf16"' "$folder/gpu.jsonl" || fail "the default precision on a GPU is not bf16"
for stage in 1 2 3; do
  other=$(digest --ranks 2 --zero-stage $stage)
  [ "$other" = "$first" ] || fail "ZeRO stage $stage has digest $other, ZeRO stage 0 has $first"
done
if [ "${2:-}" = nccl ]; then
  # NCCL adds in its own order, so digests are equal only with --reproducible.
  other=$(digest --ranks 2 --zero-stage 3 --world nccl --reproducible)
  [ "$other" = "$(digest --ranks 2 --zero-stage 3 --reproducible)" ] || fail "the digest $other over NCCL differs from the digest without NCCL"
fi
# Training on two pipeline stages of one rank each must give the same digest as training on one rank.
micro_batches=(--accumulate 3 --accumulate-into shard --zero-stage 2)
alone=$(digest --ranks 1 "${micro_batches[@]}")
for world in auto ${2:+nccl}; do
  other=$(digest --ranks 2 --pipeline 2 "${micro_batches[@]}" --world "$world")
  [ "$other" = "$alone" ] || fail "a pipeline (--world $world) has digest $other, one rank has $alone"
done
[ -n "$(digest --ranks 3 --zero-stage 3)" ] || fail "training with three ranks failed"

# Steps that run as graphs give the same digest. Graphs need one GPU per rank. same_in_graphs OPTION...
same_in_graphs() {
  local with without
  with=$(train --device cuda --steps 5 --graph on "$@" | sed -n 's/^digest //p')
  without=$(train --device cuda --steps 5 --graph off "$@" | sed -n 's/^digest //p')
  if [ -z "$with" ] || [ "$with" != "$without" ]; then fail "with graphs, $* has digest $with, without $without"; fi
}
same_in_graphs --ranks 1 --accumulate 2
same_in_graphs --ranks 1 --precision fp16 --zero-stage 1
same_in_graphs --ranks 1 --metrics "$folder/graph.jsonl"
[ "$(grep -c '^{"step":' "$folder/graph.jsonl")" -eq 5 ] || fail "the metrics of a run with graphs lack steps"
code=0
train --device cuda --ranks 1 --graph on --check-state >"$folder/refused" 2>&1 || code=$?
[ $code -eq 1 ] || fail "--graph on with --check-state ended with code $code"
grep -q -- '--graph is on, but the passes of rank 0 cannot be captured: ' "$folder/refused" ||
  fail "unexpected output of --graph on with --check-state: $(cat "$folder/refused")"
if [ "${2:-}" = nccl ]; then
  same_in_graphs --ranks 2 --world nccl --zero-stage 3 --accumulate 2
  same_in_graphs --ranks 2 --world nccl --pipeline 2 --accumulate 3 --recompute block
  same_in_graphs --ranks 2 --world nccl --tensor 2 --zero-stage 2
fi

# A Llama with all variations of attention.
cat >"$folder/config.json" <<'END'
{"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
 "intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": 53, "head_dim": 10, "attention_bias": true,
 "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 0, "rope_scaling": {"rope_type": "yarn", "factor": 4}}
END
varied=(--model "$folder/config.json")
first_varied=$(digest "${varied[@]}" --ranks 2 --zero-stage 0)
other=$(digest "${varied[@]}" --ranks 2 --zero-stage 3 --recompute block)
[ "$other" = "$first_varied" ] || fail "Qwen3 at ZeRO stage 3 has digest $other, at ZeRO stage 0 $first_varied"

same_in_graphs --ranks 1 "${varied[@]}" --recompute block
same_in_graphs --ranks 1 "${varied[@]}" --lora rank=3

# Evaluations and samples run between steps with graphs. With this scaling, the angles depend on the number of
# positions, which differs between training and samples.
printf 'abcdefghijklmnopqrstuvwxyz %.0s' {1..40} >"$folder/text"
"$program" data "$folder/text" --learn-tokenizer 260 --out "$folder/tokens.h5" >"$folder/tokenized"
cat >"$folder/dynamic.json" <<'END'
{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24,
 "max_position_embeddings": 6, "vocab_size": 260, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}
END
between=(--model "$folder/dynamic.json" --data "$folder/tokens.h5" --eval-data "$folder/tokens.h5" --eval-every 2
  --sample-every 1 --sample-prompt abc --sample-tokens 3 --sequence 5 --micro-batch 2 --steps 6 --lr 0.01 --quiet)
for graph in on off; do
  "$program" train --device cuda --ranks 1 "${between[@]}" --graph $graph | grep '^digest ' >"$folder/between_$graph"
done
cmp "$folder/between_on" "$folder/between_off" || fail "with evaluations and samples, graphs change the digest"

# Memory planned without a GPU must equal the memory measured on GPUs.
for stage in 0 3; do
  for options in "gpt2-nano" "$folder/config.json" "$folder/config.json --lora rank=3"; do
    read -ra model <<<"$options"
    train --model "${model[@]}" --device cuda --ranks 2 --zero-stage $stage --gather copy --metrics "$folder/memory.jsonl" >"$folder/output"
    measured=$(sed -n 's/.*"measured_peak":\([0-9]*\).*/\1/p' "$folder/memory.jsonl")
    planned=$("$program" plan --model "${model[@]}" "${shape[@]}" --ranks 2 --stages $stage --gather copy --precision bf16 --machine dgx-h100 \
      --format json | sed -n 's/.*"peak": \([0-9]*\).*/\1/p')
    [ "$planned" = "$measured" ] ||
      fail "$options at ZeRO stage $stage: the planned peak is $planned bytes, the measured peak $measured"
  done
done

# A plan that does not fit a GPU is rejected before memory is allocated.
code=0
train --device cuda --ranks 2 --width 65536 >"$folder/large" 2>&1 || code=$?
[ $code -eq 2 ] || fail "a model that does not fit a GPU ended with code $code: $(cat "$folder/large")"
grep -q 'not enough memory: a rank needs .* but only .* is available' "$folder/large" ||
  fail "unexpected output for a model that does not fit: $(cat "$folder/large")"

# The rates of GPUs are not known without --machine.
code=0
train --mesh auto --device cuda --ranks 2 >"$folder/search" 2>&1 || code=$?
[ $code -eq 1 ] || fail "--mesh auto without --machine ended with code $code"
grep -q -- '--mesh auto on GPUs needs --machine' "$folder/search" || fail "unexpected output: $(cat "$folder/search")"
other=$(digest --mesh auto --machine dgx-h100 --ranks 2 --pipeline 1 --tensor 1 --zero-stage 2 --micro-batch 1)
[ "$other" = "$first" ] || fail "a run with --mesh auto has digest $other, a run without has $first"

# Digests of the state and replays change no result, and find injected bit flips.
for stage in 0 1 2 3; do
  other=$(digest --ranks 2 --zero-stage $stage --check-state --replay-every 2)
  [ "$other" = "$first" ] || fail "with --check-state and --replay-every, ZeRO stage $stage has digest $other, without $first"
done
# finds SENTENCE FAULT OPTION...: runs with the fault, which must end with exit code 3 and a line that matches SENTENCE.
finds() {
  local sentence=$1 fault=$2 code=0
  shift 2
  ALIQUOT_FAULT=$fault train --device cuda "$@" >"$folder/fault" 2>&1 || code=$?
  [ $code -eq 3 ] || fail "the fault $fault ended with code $code: $(cat "$folder/fault")"
  grep -Eq -- "$sentence" "$folder/fault" || fail "the fault $fault was not found: $(cat "$folder/fault")"
}
alone='before its update: rank 1 \([^)]*\) computed' both='before its update: rank 0 \([^)]*\) or rank 1 \([^)]*\) computed'
for world in auto ${2:+nccl}; do
  ranks=(--ranks 3) named=$alone
  # Two ranks cannot decide which of them is wrong.
  if [ "$world" = nccl ]; then ranks=(--ranks 2 --world nccl) named=$both; fi
  finds 'parameters of unit .* on rank 1' rank=1,step=1,op=update,kind=flip "${ranks[@]}" --zero-stage 3 --check-state
  finds 'optimizer state of unit .* on rank 1' rank=1,step=1,op=update,kind=flip,of=exp_avg "${ranks[@]}" --zero-stage 1 --check-state
  finds 'parameters of unit .* on rank 1' rank=1,step=1,op=publish,kind=flip "${ranks[@]}" --zero-stage 2 --check-state
  replays=("${ranks[@]}" --replay-every 2)
  finds "$named wrong gradients" rank=1,step=2,op=backward,kind=flip "${replays[@]}" --zero-stage 2
  finds "$named wrong gradients" rank=1,step=2,op=forward,kind=flip,of=activations "${replays[@]}" --zero-stage 3
  finds "$named a wrong sum" rank=1,step=2,op=reduce,kind=flip "${replays[@]}" --zero-stage 2
  finds "$named a wrong sum" rank=1,step=1,op=reduce,kind=flip,times=always "${replays[@]}" --zero-stage 0 --accumulate 2
done
finds "$alone a wrong sum" rank=1,step=2,op=exchange,kind=flip --ranks 6 --replicas 3 --zero-stage 3 --replay-every 2

digest --ranks 2 --checkpoint-dir "$folder/runs" --stop-after 2 >"$folder/half"
resumed=$(digest --ranks 2 --checkpoint-dir "$folder/runs" --resume auto)
[ "$resumed" = "$first" ] || fail "a resumed run has digest $resumed, an uninterrupted run $first"

for model in gpt2-nano "$folder/config.json"; do
  train --model "$model" --device cuda --ranks 2 --precision fp32 --metrics "$folder/gpu32.jsonl" >"$folder/gpu32"
  train --model "$model" --device host --ranks 2 --precision fp32 --metrics "$folder/host.jsonl" >"$folder/host"
  paste <(losses "$folder/gpu32.jsonl") <(losses "$folder/host.jsonl") |
    awk '{ if ($1 < 0.9999 * $2 || $1 > 1.0001 * $2) { print; exit 1 } ++n } END { if (n < 3) exit 1 }' ||
    fail "$model: the losses above (GPU, host) differ by more than 1e-4"
done
