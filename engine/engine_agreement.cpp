// Checks that all ranks have the same plan and options before a difference can cause a deadlock.
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ranges>

#include "engine/engine.h"
#include "engine/options/enum_names.h"
#include "engine/options/policy_of.h"
#include "engine/plan/plan_rewriter.h"
#include "engine/proof/validate.h"
#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

/// Describes the first line that differs between the texts of rank 0 and `rank`.
std::string first_difference(std::string_view of_0, int rank, std::string_view of_rank) {
  while (!of_0.empty() || !of_rank.empty()) {
    const std::string_view line_0 = of_0.substr(0, of_0.find('\n')), line = of_rank.substr(0, of_rank.find('\n'));
    if (line_0 != line) return fmt::format("rank 0 has \"{}\", rank {} has \"{}\"", line_0, rank, line);
    of_0.remove_prefix(std::min(of_0.size(), line_0.size() + 1));
    of_rank.remove_prefix(std::min(of_rank.size(), line.size() + 1));
  }
  return "only sizes or offsets of buffers differ";
}

/// All hyperparameters of an optimizer, one per line.
std::string optimizer_text(const Optimizer& optimizer, const std::string& of) {
  return std::visit(
      [&](const auto& o) {
        std::string text;
        const auto add = [&](std::string_view number, auto value) {
          text += fmt::format("{}.{} {}\n", of, number, value);
        };
        if constexpr (requires { o.lr; }) add("lr", o.lr);
        if constexpr (requires { o.beta1; }) add("beta1", o.beta1), add("beta2", o.beta2);
        if constexpr (requires { o.eps; }) add("eps", o.eps);
        if constexpr (requires { o.weight_decay; }) add("weight_decay", o.weight_decay);
        if constexpr (requires { o.momentum; }) add("momentum", o.momentum), add("nesterov", o.nesterov);
        if constexpr (requires { o.dampening; }) add("dampening", o.dampening);
        if constexpr (requires { o.iterations; }) {
          add("iterations", o.iterations);
          add("rate", static_cast<int>(o.rate));
          add("products", name(o.products));
        }
        if constexpr (requires { o.rounding; }) add("rounding", static_cast<int>(o.rounding));
        if constexpr (requires { o.rest; }) text += optimizer_text(o.rest, of + ".rest");
        return text;
      },
      optimizer);
}

std::string one_line(const std::vector<PipelineAction>& actions) {
  std::string line = text(PassOrder{actions});
  line.pop_back();
  return line;
}

/// The options that determine the schedule, one per line, under their names in EngineOptions.
std::string schedule_options_text(const EngineOptions& o) {
  return fmt::format(
             "tensor {}\npipeline {}\npipeline_schedule {}\nvirtual_stages {}\npipeline_cut {}\npass_order {}\n",
             o.tensor, o.pipeline, enum_name(kPipelineScheduleWords, o.pipeline_schedule), policy_of(o).virtual_stages,
             fmt::join(o.pipeline_cut, ","), fmt::join(std::views::transform(o.pass_order, one_line), "; ")) +
         fmt::format("zero_stage {}\nreplicas {}\nprecision {}\naccumulate {}\naccumulate_into {}\n", o.zero_stage,
                     o.replicas, o.precision.describe(), o.accumulate,
                     enum_name(kAccumulateIntoWords, o.accumulate_into)) +
         fmt::format(
             "prefetch {}\nkeep_gathered {}\ngather_for {}\nrecompute {}\ngather {}\noffload_state "
             "{}\noffload_parameters {}\n",
             o.prefetch, o.keep_gathered, o.gather_for, o.recompute, enum_name(kGatherWords, o.gather),
             enum_name(kOffloadWords, o.offload_state), enum_name(kOffloadWords, o.offload_parameters)) +
         fmt::format("update_in_backward {}\nreproducible {}\nquantize_weights {}\nquantize_gradients {}\n",
                     o.update_in_backward, o.reproducible, o.quantize_weights, o.quantize_gradients) +
         fmt::format("memory_budget_bytes {}\nbetween_steps_bytes {}\ncheck_state {}\nreplay_every {}\ncheck {}\n",
                     o.memory_budget_bytes, o.between_steps_bytes, o.check_state, o.replay_every, o.check);
}

/// Describes the processor. Ranks with equal descriptions compute equal bits, which replays need.
std::string processor_text(const Device& device) {
  if (device.kind() == DeviceKind::kHost) return fmt::format("instruction set {}\n", name(best_isa()));
  const std::string gpu = device.describe();  // "NVIDIA H200 #0"
  return fmt::format("GPU {}\n", gpu.substr(0, gpu.rfind(" #")));
}

}  // namespace

/// The options that affect results but not the plan, one per line.
std::string Engine::options_text() const {
  const LossScaling& scaling = options_.loss_scaling;
  const std::string processor = options_.replay_every == 0 ? "" : processor_text(world_.device());
  return processor +
         fmt::format("optimizer {}\n{}moments {}\nclip {}\nseed {}\nmax_skipped {}\ngraph {}\n",
                     aliquot::name(options_.optimizer), optimizer_text(options_.optimizer, "optimizer"),
                     aliquot::name(options_.moments), options_.clip, options_.seed, options_.max_skipped,
                     static_cast<int>(options_.graph)) +
         fmt::format("loss_scaling {} 2^{} window {} hysteresis {} {} least {}\n", scaling.loss_scale,
                     scaling.initial_scale_power, scaling.loss_scale_window, scaling.hysteresis,
                     scaling.consecutive_hysteresis, scaling.min_loss_scale);
}

/// `others`: the secondary plans of all stages.
void Engine::check_agreement(const std::vector<Plan>& stages, const std::vector<Plan>& others) const {
  auto& ranks = world_.communicator();
  std::string own = options_text();
  for (const Plan& stage : stages) own += fmt::format("{:016x}\n", hash(stage));
  for (const Plan& other : others) own += fmt::format("{:016x}\n", hash(other));
  const auto all = ranks.gather_objects(own);
  const bool same = std::all_of(all.begin(), all.end(), [&](const std::string& theirs) { return theirs == all[0]; });
  if (same) return;
  std::string plans;
  for (const Plan& stage : stages) plans += description(stage);
  const auto texts = ranks.gather_objects(options_text() + schedule_options_text(options_) + plans);
  for (int r = 1; r < ranks.rank_count(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(fmt::format("the plan or options of rank {} differ from those of rank 0: {}", r,
                                 first_difference(texts[0], r, texts[r])));
  }
}

Engine::SecondaryPlans Engine::agreed_plans(const std::vector<Plan>& stages) const {
  std::vector<Plan> evaluations = evaluations_of(stages), replays;
  rewrite_plans(evaluations);
  if (stages.front().policy.replay_every != 0) {
    replays = replays_of(stages);
    rewrite_plans(replays);
  }
  std::vector<Plan> others = evaluations;
  others.insert(others.end(), replays.begin(), replays.end());
  check_agreement(stages, others);
  prove(stages);
  prove(evaluations);
  if (!replays.empty()) prove(replays);
  SecondaryPlans own{.evaluation = std::move(evaluations[own_stage()]), .replay = {}};
  if (!replays.empty()) own.replay = std::move(replays[own_stage()]);
  return own;
}

}  // namespace aliquot
