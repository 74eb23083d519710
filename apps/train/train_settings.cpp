#include "apps/train/train_settings.h"

#include "apps/plan/use_costs.h"
#include "checkpoint/save.h"

namespace aliquot {

WorldOptions world_options(const TrainOptions& o) {
  WorldOptions world = o.world;
  world.flight_directory = o.checkpoint_dir;
  return world;
}

EngineOptions engine_options(const TrainOptions& o) {
  EngineOptions engine = o.engine_options();
  const MicroBatch batch{o.micro_batch, *o.sequence};
  engine.cost = cost_of(find_machine(o.machine), model_shape(o), batch);
  if (!o.profile.empty()) apply_profile(engine.cost, o.profile, batch);
  if (!o.checkpoint_dir.empty() || o.resume != "none" || !o.init.empty()) engine.between_steps_bytes = kStagingBytes;
  engine.max_skipped = 0;  // instead, TrainRun limits the number of skipped steps
  engine.tell_skipped = false;
  return engine;
}

RateSchedule rate_schedule(const TrainOptions& o) {
  const auto scaled = [&](double lr) {
    return scaled_learning_rate(lr, o.scale_lr, *o.global_batch, o.base_batch.value_or(0));
  };
  return {.shape = o.schedule,
          .lr = scaled(*o.optimizer.lr),
          .min_lr = scaled(o.min_lr),
          .warmup_steps = o.warmup,
          .warmup_shape = o.warmup_shape,
          .warmup_from = scaled(o.warmup_from),
          .steps = o.steps};
}

ModelOptions model_options(const TrainOptions& o) {
  // If micro-batches accumulate in the full gradients, kernels must add to them.
  const bool sums_in_place = o.engine.accumulate > 1 && o.engine.accumulate_into == AccumulateInto::kFull;
  return {.batch = o.micro_batch,
          .sequence = *o.sequence,
          .gradients = sums_in_place ? GradientMode::kAdd : GradientMode::kAssign,
          .table_gradients = GradientMode::kAdd,
          .compute = *o.precision,
          .gradient_type = o.engine.precision.gradients};
}

}  // namespace aliquot
