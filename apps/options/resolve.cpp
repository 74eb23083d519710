// What follows from the options together.
#include <string>

#include "apps/options/train_options.h"
#include "engine/options/policy_of.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// What the global batch leaves a rank.
void resolve_micro_batch(TrainOptions& o, int rank_count) {
  const int64_t shares = int64_t{rank_count} * o.engine.accumulate;
  o.micro_batch = o.global_batch ? *o.global_batch / shares : 1;
  if (!o.global_batch || (o.micro_batch > 0 && *o.global_batch % shares == 0)) return;
  throw UsageError("A global batch of " + std::to_string(*o.global_batch) + " cannot be shared by " +
                   std::to_string(rank_count) + " ranks x " + std::to_string(o.engine.accumulate) +
                   " micro-batches: change train_batch_size, or give --micro-batch or --global-batch.");
}

void resolve_batch(TrainOptions& o, int rank_count) {
  if (o.micro_batch == 0) resolve_micro_batch(o, rank_count);
  const int64_t at_once = rank_count * o.micro_batch;
  if (!o.global_batch) {
    o.global_batch = at_once * o.engine.accumulate;
    return;
  }
  if (*o.global_batch % at_once != 0) {
    throw UsageError("--global-batch " + std::to_string(*o.global_batch) + " is not a multiple of " +
                     std::to_string(rank_count) + " ranks x --micro-batch " + std::to_string(o.micro_batch) +
                     ": change one of the three.");
  }
  const int64_t accumulate = *o.global_batch / at_once;
  if (o.engine.accumulate != 1 && o.engine.accumulate != accumulate) {
    throw UsageError("--accumulate " + std::to_string(o.engine.accumulate) + " contradicts --global-batch " +
                     std::to_string(*o.global_batch) + ", which makes it " + std::to_string(accumulate) +
                     ": leave one of them out.");
  }
  if (accumulate > kMaxMicroBatches) {
    throw UsageError("--global-batch " + std::to_string(*o.global_batch) + " would be " + std::to_string(accumulate) +
                     " micro-batches a step, and " + std::to_string(kMaxMicroBatches) +
                     " are the most: give a larger --micro-batch, or more ranks.");
  }
  o.engine.accumulate = static_cast<int>(accumulate);
}

void check_combinations(const TrainOptions& o) {
  if (o.engine.update_in_backward && o.skip_spikes) {
    throw UsageError(
        "--skip-spikes looks at the loss before anything is updated, and --update-in-backward has updated by then: "
        "leave "
        "one of them out.");
  }
  if (o.engine.update_in_backward && (o.engine.clip != 0 || o.precision == DType::kFloat16)) {
    throw UsageError("--update-in-backward cannot know the global norm in time: it needs --clip 0, and not fp16.");
  }
  if (o.scale_lr != RateScaling::kNone && !o.base_batch)
    throw UsageError("--scale-lr needs --base-batch, the batch --lr was chosen for.");
  if (o.scale_lr == RateScaling::kNone && o.base_batch)
    throw UsageError(
        "--base-batch says what to scale the rate from, but --scale-lr is none: give linear or sqrt, or leave it out.");
  if (o.warmup_from > *o.optimizer.lr)
    throw UsageError("--warmup-from " + exact_text(o.warmup_from) + " is above --lr " + exact_text(*o.optimizer.lr) +
                     ": change one.");
  if (o.checkpoint_every > 0 && o.checkpoint_dir.empty())
    throw UsageError("--checkpoint-every needs --checkpoint-dir.");
  if (o.resume != "none" && o.resume != "auto" && !o.init.empty())
    throw UsageError("--resume " + o.resume + " and --init both say where to start: leave one out.");
  if (o.resume == "auto" && o.checkpoint_dir.empty()) throw UsageError("--resume auto needs --checkpoint-dir.");
  if (o.eval_every > 0 && o.eval_data.empty()) throw UsageError("--eval-every needs --eval-data.");
  if (o.eval_every == 0 && !o.eval_data.empty())
    throw UsageError("--eval-data is looked at every --eval-every N steps: give that too.");
  if (o.digest_every > 0 && o.metrics.empty())
    throw UsageError("--digest-every writes into --metrics FILE: give that too.");
  if (o.engine.reproducible && o.engine.accumulate > 1 && o.engine.accumulate_into == AccumulateInto::kFull) {
    throw UsageError("--reproducible sums every micro-batch over the ranks: leave out --accumulate-into full.");
  }
  if (o.min_lr > *o.optimizer.lr)
    throw UsageError("--min-lr " + exact_text(o.min_lr) + " is above --lr " + exact_text(*o.optimizer.lr) +
                     ": change one.");
  // DeepSpeed's warm-up, of 1000 steps where its file says none, may be longer than what is trained.
  if (o.warmup > o.steps && o.deepspeed.empty())
    throw UsageError("--warmup " + std::to_string(o.warmup) + " is longer than --steps " + std::to_string(o.steps) +
                     ": change one.");
}

}  // namespace

void resolve(TrainOptions& o, int rank_count, bool on_gpu) {
  const ModelShape shape = model_shape(o);
  o.layers = shape.layers;
  o.width = shape.width;
  o.heads = shape.heads;
  o.kv_heads = shape.kv_heads;
  o.hidden = shape.hidden;
  o.context = shape.context;
  o.vocabulary = shape.vocabulary;
  if (!o.sequence) o.sequence = shape.context;
  if (*o.sequence > shape.context) {
    throw UsageError("--sequence " + std::to_string(*o.sequence) + " is longer than the model's context of " +
                     std::to_string(shape.context) + ": give less, or a larger --context.");
  }
  if (o.memory_budget && *o.memory_budget < 1)
    throw UsageError("--memory-budget 0: give the bytes that a rank may take.");
  if (o.engine.max_skipped < 1) throw UsageError("--max-skipped 0: give a whole number from 1.");
  if (o.engine.seed > uint64_t{INT64_MAX}) throw UsageError("--seed: give at most 9223372036854775807.");
  o.ranks = rank_count;
  OptimizerOptions& optimizer = o.optimizer;
  const bool muon = optimizer.kind == OptimizerKind::kMuon;
  if (muon || optimizer.kind == OptimizerKind::kSgd) {
    if (!optimizer.momentum) optimizer.momentum = muon ? 0.95 : 0.9;
    if (!optimizer.nesterov) optimizer.nesterov = muon;
  }
  EngineOptions& engine = o.engine;
  if (!o.precision) o.precision = on_gpu ? DType::kBFloat16 : DType::kFloat32;
  if (!engine.precision.reduce) engine.precision.reduce = engine.precision.gradients;
  const bool into_shard = accumulates_into_shard(policy_of(engine));
  engine.accumulate_into = into_shard ? AccumulateInto::kShard : AccumulateInto::kFull;
  resolve_batch(o, rank_count);
  check_combinations(o);
}

}  // namespace aliquot
