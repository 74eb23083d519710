// Derives options from one another and checks their combinations.
#include <string>

#include "apps/options/products_option.h"
#include "apps/options/train_options.h"
#include "engine/options/policy_of.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Formats the number of ranks with different data.
std::string ranks_text(const EngineOptions& engine, int rank_count) {
  return std::to_string(rank_count) + (engine.tensor > 1 ? " tensor groups" : " ranks") +
         (engine.pipeline > 1 ? " per pipeline stage" : "");
}

/// Sets `micro_batch` for a DeepSpeed file that gives only the global batch. `rank_count` is the number of ranks with
/// different data.
void resolve_micro_batch(TrainOptions& o, int rank_count) {
  const int64_t micro_batches = int64_t{rank_count} * o.engine.accumulate;
  o.micro_batch = o.global_batch ? *o.global_batch / micro_batches : 1;
  if (!o.global_batch || (o.micro_batch > 0 && *o.global_batch % micro_batches == 0)) return;
  throw UsageError("the global batch " + std::to_string(*o.global_batch) + " is not a multiple of " +
                   ranks_text(o.engine, rank_count) + " x " + std::to_string(o.engine.accumulate) +
                   " micro-batches: change train_batch_size, or give --micro-batch or --global-batch.");
}

/// `rank_count` is the number of all ranks.
void resolve_batch(TrainOptions& o, int rank_count) {
  const int data_ranks = data_rank_count(o.engine, rank_count);
  if (o.micro_batch == 0) resolve_micro_batch(o, data_ranks);
  if (!o.global_batch) o.global_batch = data_ranks * o.micro_batch * o.engine.accumulate;
  o.engine.accumulate = accumulate_for(*o.global_batch, o.engine, rank_count, o.micro_batch);
}

void check_combinations(const TrainOptions& o) {
  if (o.engine.update_in_backward && o.skip_spikes) {
    throw UsageError(
        "--skip-spikes needs the loss before parameters are updated, and --update-in-backward updates them earlier: "
        "leave one of them out.");
  }
  if (o.engine.update_in_backward && (o.engine.clip != 0 || o.precision == DType::kFloat16)) {
    throw UsageError(
        "--update-in-backward updates parameters before the global gradient norm is known: use --clip 0, and a "
        "--precision other than fp16.");
  }
  check_tensor_options(o);
  if (o.scale_lr != RateScaling::kNone && !o.base_batch)
    throw UsageError("--scale-lr needs --base-batch, the global batch for which --lr was chosen.");
  if (o.scale_lr == RateScaling::kNone && o.base_batch)
    throw UsageError(
        "--base-batch has no effect with --scale-lr none: use --scale-lr linear or sqrt, or leave --base-batch out.");
  if (o.warmup_from > *o.optimizer.lr)
    throw UsageError("--warmup-from " + exact_text(o.warmup_from) + " is above --lr " + exact_text(*o.optimizer.lr) +
                     ": expected at most --lr.");
  if (o.checkpoint_every > 0 && o.checkpoint_dir.empty())
    throw UsageError("--checkpoint-every needs --checkpoint-dir.");
  if (o.resume != "none" && o.resume != "auto" && !o.init.empty() && o.lora.rank == 0)
    throw UsageError("--resume " + o.resume + " and --init cannot be combined: leave one out.");
  if (o.lora.rank > 0 && o.init.empty() && (!o.checkpoint_dir.empty() || o.resume != "none")) {
    throw UsageError(
        "checkpoints of --lora contain only adapters, of the weights of --init: give --init, or leave out "
        "--checkpoint-dir and --resume.");
  }
  if (o.resume == "auto" && o.checkpoint_dir.empty()) throw UsageError("--resume auto needs --checkpoint-dir.");
  if (o.eval_every > 0 && o.eval_data.empty()) throw UsageError("--eval-every needs --eval-data.");
  if (o.sample_every > 0 && o.sample_prompt.empty())
    throw UsageError("--sample-every needs --sample-prompt, the beginning of the text.");
  if (o.sample_every == 0 && !o.sample_prompt.empty())
    throw UsageError("--sample-prompt needs --sample-every N, the number of steps between samples.");
  if (o.digest_every > 0 && o.metrics.empty())
    throw UsageError("--digest-every needs --metrics FILE, where the digests are written.");
  if (o.engine.reproducible && o.engine.accumulate > 1 && o.engine.accumulate_into == AccumulateInto::kFull) {
    throw UsageError("--reproducible reduces each micro-batch separately: leave out --accumulate-into full.");
  }
  if (o.min_lr > *o.optimizer.lr)
    throw UsageError("--min-lr " + exact_text(o.min_lr) + " is above --lr " + exact_text(*o.optimizer.lr) +
                     ": expected at most --lr.");
  // Skipped with a DeepSpeed file: DeepSpeed's default warm-up of 1000 steps may be longer than the run.
  if (o.warmup > o.steps && o.deepspeed.empty())
    throw UsageError("--warmup " + std::to_string(o.warmup) + " is longer than --steps " + std::to_string(o.steps) +
                     ": expected at most --steps.");
}

}  // namespace

void check_tensor_options(const CommonOptions& o) {
  if (o.engine.tensor == 1) return;
  if (o.optimizer.kind == OptimizerKind::kMuon)
    throw UsageError("--optimizer muon needs complete matrices, which --tensor divides: use another optimizer.");
  if (o.optimizer.kind == OptimizerKind::kAdamW8bit) {
    throw UsageError(
        "--optimizer adamw8bit keeps state in blocks of consecutive elements, which --tensor divides: use another "
        "optimizer, such as adamw with --state bf16.");
  }
  if (!o.engine.reproducible) return;
  if (o.engine.moments == DType::kBFloat16)
    throw UsageError(
        "--state bf16 rounds with random numbers that depend on --tensor, so it cannot be combined with "
        "--reproducible: leave out --state bf16.");
  if (o.engine.quantize_weights)
    throw UsageError(
        "--quantize weights rounds blocks that depend on --tensor, so it cannot be combined with --reproducible: leave "
        "out --quantize.");
}

std::vector<std::string> ineffective_options(const TrainOptions& o, const std::vector<GivenOption>& given) {
  const OptimizerKind kind = o.optimizer.kind;
  const bool has_momentum = kind == OptimizerKind::kSgd || kind == OptimizerKind::kMuon;
  const std::string optimizer = "with --optimizer " + option_text(o, "optimizer");
  std::vector<std::string> warnings;
  const auto warn_of = [&](std::string_view name, bool has_effect, const std::string& why) {
    const auto found =
        std::ranges::find_if(given, [&](const GivenOption& one) { return one.name == name && !one.is_default; });
    if (found != given.end() && !has_effect) warnings.push_back(found->where + " has no effect " + why + ".");
  };
  warn_of("momentum", has_momentum, optimizer);
  warn_of("sequence-parallel", o.engine.tensor > 1, "without --tensor");
  warn_of("nesterov", has_momentum, optimizer);
  warn_of("muon-lr", kind == OptimizerKind::kMuon, optimizer);
  warn_of("muon-products", kind == OptimizerKind::kMuon, optimizer);
  warn_of("keep", !o.checkpoint_dir.empty(), "without --checkpoint-dir");
  warn_of("save", !o.checkpoint_dir.empty(), "without --checkpoint-dir");
  warn_of("min-lr", o.schedule != RateShape::kConstant, "with --schedule constant");
  warn_of("metrics-every", !o.metrics.empty(), "without --metrics");
  return warnings;
}

int data_rank_count(const EngineOptions& options, int rank_count) {
  if (rank_count % options.pipeline != 0)
    throw UsageError("--pipeline " + std::to_string(options.pipeline) + " does not divide the number of ranks, " +
                     std::to_string(rank_count) + ": every pipeline stage needs the same number of ranks.");
  const int stage_ranks = rank_count / options.pipeline;
  if (stage_ranks % options.tensor != 0)
    throw UsageError("--tensor " + std::to_string(options.tensor) + " does not divide the number of ranks" +
                     (options.pipeline > 1 ? " of a pipeline stage, " : ", ") + std::to_string(stage_ranks) +
                     ": every tensor group needs the same number of ranks.");
  return stage_ranks / options.tensor;
}

int accumulate_for(int64_t global_batch, const EngineOptions& engine, int rank_count, int64_t micro_batch) {
  const int data_ranks = data_rank_count(engine, rank_count);
  if (global_batch % (data_ranks * micro_batch) != 0) {
    throw UsageError("--global-batch " + std::to_string(global_batch) + " is not a multiple of " +
                     ranks_text(engine, data_ranks) + " x --micro-batch " + std::to_string(micro_batch) +
                     ": change one of the three.");
  }
  const int64_t accumulate = global_batch / (data_ranks * micro_batch);
  if (engine.accumulate != 1 && engine.accumulate != accumulate) {
    throw UsageError("--accumulate " + std::to_string(engine.accumulate) + " contradicts --global-batch " +
                     std::to_string(global_batch) + ", which requires --accumulate " + std::to_string(accumulate) +
                     ": leave one of them out.");
  }
  if (accumulate > kMaxMicroBatches) {
    throw UsageError("--global-batch " + std::to_string(global_batch) + " requires " + std::to_string(accumulate) +
                     " micro-batches per step, and the maximum is " + std::to_string(kMaxMicroBatches) +
                     ": use a larger --micro-batch or more ranks.");
  }
  return static_cast<int>(accumulate);
}

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
  if (!shape.accepts_sequence(*o.sequence)) {
    throw UsageError("--sequence " + std::to_string(*o.sequence) + " is longer than the model's context of " +
                     std::to_string(shape.context) + ": use a shorter --sequence or a larger --context.");
  }
  if (o.memory_budget && *o.memory_budget < 1)
    throw UsageError("invalid value '0' for --memory-budget: expected at least 1 byte.");
  if (o.engine.max_skipped < 1)
    throw UsageError("invalid value '0' for --max-skipped: expected an integer of at least 1.");
  if (o.engine.seed > uint64_t{INT64_MAX}) {
    throw UsageError("invalid value '" + std::to_string(o.engine.seed) +
                     "' for --seed: expected at most 9223372036854775807.");
  }
  o.ranks = rank_count;
  OptimizerOptions& optimizer = o.optimizer;
  const bool muon = optimizer.kind == OptimizerKind::kMuon;
  if (muon || optimizer.kind == OptimizerKind::kSgd) {
    if (!optimizer.momentum) optimizer.momentum = muon ? 0.95 : 0.9;
    if (!optimizer.nesterov) optimizer.nesterov = muon;
  }
  EngineOptions& engine = o.engine;
  if (!o.precision) o.precision = on_gpu ? DType::kBFloat16 : DType::kFloat32;
  check_products(o.products, o, on_gpu, "--device cuda");
  if (o.attention == AttentionKernels::kCudnn && (!on_gpu || o.precision == DType::kFloat32))
    throw UsageError("--attention cudnn needs --device cuda and --precision bf16 or fp16.");
  if (!engine.precision.reduce) engine.precision.reduce = engine.precision.gradients;
  const bool into_shard = accumulates_into_shard(policy_of(engine));
  engine.accumulate_into = into_shard ? AccumulateInto::kShard : AccumulateInto::kFull;
  resolve_batch(o, rank_count);
  check_combinations(o);
}

}  // namespace aliquot
