#include "apps/train/train_settings.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <span>
#include <sstream>

#include "apps/plan/use_costs.h"
#include "checkpoint/save.h"
#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

/// Options whose values may differ between ranks. The paths among them must be set on all ranks or on none.
constexpr std::array<std::string_view, 15> kPaths = {
    "checkpoint-dir", "config",    "data",    "deepspeed", "eval-data",          "init",
    "machine",        "model",     "metrics", "offload",   "offload-parameters", "pipeline-order-from",
    "profile",        "tokenizer", "trace"};
constexpr std::array<std::string_view, 9> kLocal = {
    "device", "log-every", "progress", "quiet", "ranks", "straggler-threshold", "threads", "timeout", "world"};

bool contains(std::span<const std::string_view> names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Returns the options that must be the same on all ranks, one "--NAME VALUE" each.
std::vector<std::string> shared_options(TrainOptions options) {
  std::vector<std::string> lines;
  const OptionTable table = train_option_table(options);
  for (const OptionTable::Entry& entry : table.entries()) {
    const std::string &name = entry.option.name, value = text_of(entry.option.get());
    if (contains(kLocal, name)) continue;
    const std::string shown = contains(kPaths, name) ? value.empty() ? "(not set)" : "(set)" : value;
    lines.push_back(fmt::format("--{} {}", name, shown));
  }
  return lines;
}

}  // namespace

void check_same_options(World& world, const TrainOptions& options) {
  const ScopedCollectivePurpose purpose("compare options");
  const std::vector<std::string> own = shared_options(options);
  const auto all = world.communicator().gather_objects(fmt::format("{}\n", fmt::join(own, "\n")));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::istringstream first(all[0]), other(all[r]);
    std::string a, b;
    while (a == b && std::getline(first, a) && std::getline(other, b)) {
    }
    throw UsageError(fmt::format(
        "the options of the ranks differ: rank 0 has {}, rank {} has {}; start all ranks with the same options.", a, r,
        b));
  }
}

WorldOptions world_options(const TrainOptions& o) {
  WorldOptions world = o.world;
  world.flight_directory = o.checkpoint_dir;
  return world;
}

EngineOptions engine_options(const TrainOptions& o) {
  EngineOptions engine = o.engine_options();
  const MicroBatch batch{o.micro_batch, *o.sequence, o.engine.tensor};
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

ModelOptions model_options(const TrainOptions& o, int rank) {
  // If micro-batches accumulate in the full gradients, kernels must add to them.
  const bool sums_in_place = o.engine.accumulate > 1 && o.engine.accumulate_into == AccumulateInto::kFull;
  return {.batch = o.micro_batch,
          .sequence = *o.sequence,
          .gradients = sums_in_place ? GradientMode::kAdd : GradientMode::kAssign,
          .table_gradients = GradientMode::kAdd,
          .compute = *o.precision,
          .gradient_type = o.engine.precision.gradients,
          .tensor = tensor_group(o, o.engine, rank),
          .decode_positions = o.decode_positions};
}

}  // namespace aliquot
