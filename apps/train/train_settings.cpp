#include "apps/train/train_settings.h"

#include "apps/train/quantize_words.h"

namespace aliquot {
namespace {

Optimizer optimizer(const TrainOptions& o) {
  const auto lr = static_cast<float>(o.lr), decay = static_cast<float>(o.weight_decay), eps = static_cast<float>(o.eps);
  const auto beta_1 = static_cast<float>(o.beta_1), beta_2 = static_cast<float>(o.beta_2);
  if (o.optimizer == "adam") return Adam{lr, beta_1, beta_2, eps, decay};
  if (o.optimizer == "adamw8bit") return AdamW8bit{lr, beta_1, beta_2, eps, decay};
  if (o.optimizer == "lion") return Lion{lr, beta_1, beta_2, decay};
  if (o.optimizer == "sgd") {
    return Sgd{.lr = lr, .momentum = static_cast<float>(*o.momentum), .weight_decay = decay, .nesterov = *o.nesterov};
  }
  if (o.optimizer == "muon") {
    return Muon{.lr = static_cast<float>(o.muon_lr),
                .momentum = static_cast<float>(*o.momentum),
                .weight_decay = decay,
                .nesterov = *o.nesterov,
                .rest = {lr, beta_1, beta_2, eps, decay}};
  }
  return AdamW{lr, beta_1, beta_2, eps, decay};
}

}  // namespace

WorldOptions world_options(const TrainOptions& o) {
  WorldOptions world{.device = parse_device(o.device)};
  if (o.world == "threads") world.kind = WorldChoice::kThreads;
  if (o.world == "mpi") world.kind = WorldChoice::kMpi;
  if (o.world == "nccl") world.kind = WorldChoice::kNccl;
  world.threads_per_rank = static_cast<int>(o.threads.value_or(0));
  world.timeout_seconds = o.timeout_seconds;
  world.flight_directory = o.checkpoint_dir;
  return world;
}

EngineOptions engine_options(const TrainOptions& o) {
  EngineOptions engine;
  engine.zero_stage = o.stage();
  engine.replicas = static_cast<int>(o.replicas);
  engine.accumulate = static_cast<int>(o.accumulate);
  engine.accumulate_into = o.accumulate_into == "full" ? AccumulateInto::kFull : AccumulateInto::kShard;
  engine.prefetch = static_cast<int>(o.prefetch);
  engine.keep_gathered = static_cast<int>(o.keep_gathered);
  engine.recompute = *recompute_count(o.recompute);
  engine.memory_budget_bytes = o.memory_budget.value_or(0);
  engine.cost.samples_per_micro_batch = static_cast<double>(o.micro_batch * *o.sequence);
  engine.gather = o.gather == "view" ? GatherMode::kView : o.gather == "copy" ? GatherMode::kCopy : GatherMode::kAuto;
  engine.precision.compute = parse_dtype(o.precision);
  engine.precision.master = o.master == "fp32" ? MasterForm::kWhole : MasterForm::kSplit;
  engine.precision.gradients = parse_dtype(o.gradients);
  engine.precision.reduce = parse_dtype(o.reduce_precision);
  engine.loss_scaling = o.loss_scaling;
  engine.moments = parse_dtype(o.state);
  engine.offload_state = offload_kind(o.offload);
  engine.offload_state_to = offload_directory(o.offload);
  engine.offload_parameters = offload_kind(o.offload_parameters);
  engine.offload_parameters_to = offload_directory(o.offload_parameters);
  engine.update_in_backward = o.update_in_backward;
  engine.reproducible = o.reproducible;
  engine.quantize_weights = quantized(o.quantize).weights;
  engine.quantize_gradients = quantized(o.quantize).gradients;
  engine.optimizer = optimizer(o);
  engine.clip = o.clip;
  engine.seed = static_cast<uint64_t>(o.seed);
  engine.tell_skipped = false;  // the run's own warning says more
  return engine;
}

RateSchedule rate_schedule(const TrainOptions& o) {
  const RateScaling scaling = rate_scaling(o.scale_lr);
  const auto scaled = [&](double lr) { return scaled_rate(lr, scaling, *o.global_batch, o.base_batch.value_or(0)); };
  return {.shape = rate_shape(o.schedule),
          .lr = scaled(o.lr),
          .min_lr = scaled(o.min_lr),
          .warmup_steps = o.warmup,
          .warmup_shape = warmup_shape(o.warmup_shape),
          .warmup_from = scaled(o.warmup_from),
          .steps = o.steps};
}

ModelOptions model_options(const TrainOptions& o) {
  // Summing micro-batches where they are written needs kernels that add.
  const bool sums_whole = o.accumulate > 1 && o.accumulate_into == "full";
  return {.batch = o.micro_batch,
          .sequence = *o.sequence,
          .gradients = sums_whole ? GradientMode::kAdd : GradientMode::kAssign,
          .table_gradients = GradientMode::kAdd,
          .compute = parse_dtype(o.precision),
          .gradient_type = parse_dtype(o.gradients)};
}

}  // namespace aliquot
