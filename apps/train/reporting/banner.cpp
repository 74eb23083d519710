#include "apps/train/reporting/banner.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/drawing/axis.h"
#include "apps/models/parameters.h"
#include "apps/options/flag_names.h"
#include "engine/choose/pipeline_schedule.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

std::string plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string model_line(const TrainOptions& o) {
  const ModelShape shape = model_shape(o);
  const ModelSpec model = parameters_of(shape);
  const auto count = [](int64_t parameters) { return count_text(static_cast<double>(parameters)); };
  const std::string trained =
      shape.lora.exists() ? fmt::format(", {} of them in adapters", count(trained_parameter_count(model))) : "";
  return fmt::format("{}, {} parameters{}; {}, width {}, vocabulary {}", model_name(o), count(parameter_count(model)),
                     trained, plural(shape.layers, "layer"), shape.width, shape.vocabulary);
}

std::string ranks_line(const TrainContext& context) {
  World& world = context.world();
  const EngineOptions& engine = context.options().engine;
  std::string text = fmt::format("{} ({}), {}; ZeRO stage {}", plural(world.rank_count(), "rank"),
                                 world.communicator().describe(), world.device().describe(), engine.zero_stage);
  if (engine.pipeline > 1) text += fmt::format(", {} pipeline stages", engine.pipeline);
  if (engine.tensor > 1) text += fmt::format(", tensor groups of {} ranks", engine.tensor);
  if (engine.replicas > 1) text += fmt::format(", {} replicas", engine.replicas);
  if (const int nodes = world.topology().node_count(); nodes > 1) text += fmt::format(", {} nodes", nodes);
  return text;
}

std::string optimizer_line(const TrainOptions& o) {
  return fmt::format("{}, learning rate {}, {}", option_text(o, "optimizer"), option_text(o, "lr"),
                     option_text(o, "schedule"));
}

std::string batch_line(const TrainContext& context) {
  const TrainOptions& o = context.options();
  std::string text = fmt::format("{} tokens a step: {} of {} tokens", *o.global_batch * *o.sequence,
                                 plural(o.micro_batch, "sequence"), *o.sequence);
  if (o.engine.accumulate > 1) text += fmt::format(" x {} micro-batches", o.engine.accumulate);
  const int data_ranks = data_rank_count(o.engine, context.world().rank_count());
  return data_ranks == 1 ? text : text + fmt::format(" x {} ranks", data_ranks);
}

std::string data_line(const TrainOptions& o, int64_t tokens) {
  if (o.data.empty()) return "built-in synthetic language";
  const double epochs =
      static_cast<double>(o.steps * *o.global_batch * *o.sequence) / static_cast<double>(std::max<int64_t>(tokens, 1));
  return fmt::format("{}, {} tokens; {} are {:.2g} epoch{}", o.data, tokens, plural(o.steps, "step"), epochs,
                     epochs == 1 ? "" : "s");
}

std::string memory_line(const TrainContext& context, const MemoryAudit& audit) {
  int64_t most = 0;
  for (const Plan& stage : context.engine().pipeline_plans())
    most = std::max(most, audit.planned(stage).planned_peak_bytes);
  std::string text = fmt::format("{} planned for a rank", format_bytes(most));
  const auto& budget = context.options().memory_budget;
  return budget ? text + fmt::format(", of a budget of {}", format_bytes(*budget)) : text;
}

}  // namespace

std::string replay_line(const TrainContext& context) {
  Engine& engine = context.engine();
  const std::vector<Plan>& stages = engine.pipeline_plans();
  return fmt::format("every {}, {:.2g} % of the time in simulation", plural(stages.front().policy.replay_every, "step"),
                     100 * replay_share(stages, engine.options().cost));
}

std::string start_banner(const TrainContext& context, const MemoryAudit& audit, int64_t data_tokens) {
  const TrainOptions& o = context.options();
  const Plan& plan = context.engine().plan();
  std::string text;
  const auto line = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("{:<11}{}\n", what, value);
  };
  line("model", model_line(o));
  line("ranks", ranks_line(context));
  if (!o.mesh.reason.empty()) line("mesh", o.mesh.reason);
  line("precision", plan.policy.precision.describe());
  if (const std::string attention = context.backend().attention_text(); !attention.empty())
    line("attention", attention);
  line("optimizer", optimizer_line(o));
  line("batch", batch_line(context));
  line("data", data_line(o, data_tokens));
  line("memory", memory_line(context, audit));
  if (plan.policy.replay_every != 0) line("replay", replay_line(context));
  if (!plan.choice.empty()) {
    line("chosen",
         with_flag_names(plan.choice) + (context.keeps_logits() ? "" : "; logits are computed twice, tile by tile"));
  }
  return text;
}

}  // namespace aliquot
