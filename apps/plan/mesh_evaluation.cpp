#include "apps/plan/mesh_evaluation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/plan/planned_run.h"
#include "engine/choose/budget.h"
#include "engine/choose/pass_times.h"
#include "engine/plan/pipeline.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

/// The micro-batches of the two steps from which a step with more micro-batches is extrapolated. Once a pipeline is
/// full, each further micro-batch adds the same time and traffic.
struct SampledSteps {
  int few, more;
};

/// Returns nothing if the step of the choice has so few micro-batches that it is simulated itself. With reproducible
/// sums, memory grows with the number of micro-batches.
std::optional<SampledSteps> sampled_steps(const MeshChoice& choice, bool reproducible) {
  if (reproducible || choice.schedule == PipelineSchedule::kGpipe) return std::nullopt;
  const int stages = choice.mesh.pipeline, full = choice.virtual_stages > 1 ? 2 : 1;
  // An interleaved schedule has rounds of `stages` micro-batches, so both steps have the same last round.
  const auto rounds = [&](int micro_batches) { return (micro_batches + stages - 1) / stages; };
  const int few = stages * std::max(full, rounds(16)) + choice.accumulate % stages;
  const SampledSteps steps{few, few + stages * rounds(4)};
  if (steps.more >= choice.accumulate) return std::nullopt;
  return steps;
}

/// Figures of a step.
struct StepFigures {
  double seconds = 0, compute_seconds = 0, sent_bytes = 0, crossing_bytes = 0;
};
constexpr std::array kStepFigures{&StepFigures::seconds, &StepFigures::compute_seconds, &StepFigures::sent_bytes,
                                  &StepFigures::crossing_bytes};

/// Returns the figures of each pipeline stage. The first stage has the crossing bytes of all.
std::vector<StepFigures> figures_of(const std::vector<Plan>& stages, const CostModel& cost) {
  const std::vector<Timeline> timelines = simulate(stages, cost);
  std::vector<StepFigures> figures;
  for (const Timeline& timeline : timelines)
    figures.push_back({timeline.step_seconds, timeline.compute_seconds, static_cast<double>(timeline.sent_bytes), 0});
  figures.front().crossing_bytes = static_cast<double>(crossing_bytes_of_first_node(stages, timelines));
  return figures;
}

StepFigures largest_of(const std::vector<StepFigures>& stages) {
  StepFigures most;
  for (const StepFigures& stage : stages) {
    for (const auto figure : kStepFigures) most.*figure = std::max(most.*figure, stage.*figure);
  }
  return most;
}

/// Extrapolates to a step with `count` micro-batches, and stores the result in `more`. `few` and `more` are the figures
/// of steps with steps.few and steps.more micro-batches.
void extrapolate(const std::vector<StepFigures>& few, std::vector<StepFigures>& more, const SampledSteps& steps,
                 int count) {
  const double times = static_cast<double>(count - steps.more) / (steps.more - steps.few);
  for (std::size_t s = 0; s < more.size(); ++s) {
    for (const auto figure : kStepFigures) more[s].*figure += times * (more[s].*figure - few[s].*figure);
  }
}

/// The number of recomputable uses of a pipeline stage.
int recomputable(const Plan& stage) {
  Policy all = stage.policy;
  all.recompute = kRecomputeAll;
  return static_cast<int>(std::ranges::count(recomputed_uses(stage.model, all, stage.stage), true));
}

int most_recomputable(const std::vector<Plan>& stages) {
  int most = 0;
  for (const Plan& stage : stages) most = std::max(most, recomputable(stage));
  return most;
}

/// The largest number of bytes that one more recomputed use may save on a pipeline stage.
int64_t saved_by_recompute(const Plan& stage) {
  int64_t most = 1;
  for (const UseActivations& use : stage.model.activations.uses) {
    if (use.recomputable) most = std::max(most, use.kept_bytes * stage.schedule.micro_batches_in_flight);
  }
  return most;
}

/// Returns a larger number of recomputed uses for stages that need more than `limit_bytes` with `recompute` of them.
/// The result may not suffice, but no smaller number does.
int next_recompute(const std::vector<Plan>& stages, int recompute, int64_t limit_bytes) {
  int64_t next = recompute + 1;
  for (const Plan& stage : stages)
    next = std::max(next, recompute + (rank_bytes(stage) - limit_bytes) / saved_by_recompute(stage));
  return static_cast<int>(std::min<int64_t>(next, most_recomputable(stages)));
}

}  // namespace

int recompute_of(const MeshTask& task) {
  return task.choice.recompute == kRecomputeAsNeeded ? task.bound.recompute : task.choice.recompute;
}

int64_t most_rank_bytes(const std::vector<Plan>& stages) {
  int64_t most = 0;
  for (const Plan& stage : stages) most = std::max(most, rank_bytes(stage));
  return most;
}

/// The plans of one or two steps of a choice.
class MeshEvaluation::Steps {
 public:
  Steps(const MeshEvaluation& of, const MeshTask& task, int recompute, const std::vector<Plan>& stages)
      : count_(task.choice.accumulate),
        sampled_(sampled_steps(task.choice, of.options_.engine.reproducible)),
        stages_(stages) {
    if (sampled_) few_ = of.plans(task, recompute, sampled_->few);
  }
  StepFigures figures(const CostModel& cost) const {
    std::vector<StepFigures> all = figures_of(stages_, cost);
    if (sampled_) extrapolate(figures_of(few_, cost), all, *sampled_, count_);
    return largest_of(all);
  }

 private:
  int count_;
  std::optional<SampledSteps> sampled_;
  const std::vector<Plan>& stages_;
  std::vector<Plan> few_;
};

bool MeshEvaluation::fit_ends(MeshTask& task, const IsSlow& is_slow) const {
  const bool open = task.choice.recompute == kRecomputeAsNeeded;
  MeshChoice choice = task.choice;
  choice.recompute = recompute_of(task);
  for (const int end : {0, choice.mesh.pipeline - 1}) {
    for (;;) {
      const Policy of = policy(task, choice.recompute, planned_micro_batches(choice));
      const ModelSpec model = with_added_gradients(task.model->model, of);
      std::vector<Plan> stage = {Planner{model, topology_, task.model->cost}.plan_stage(of, end)};
      stage.front().schedule.stream_bytes = of.between_steps_bytes;  // other stages may limit it to this
      if (most_rank_bytes(stage) <= limit_bytes_) break;
      if (!open || choice.recompute >= most_recomputable(stage)) return false;
      choice.recompute = next_recompute(stage, choice.recompute, limit_bytes_);
      if (is_slow(choice)) return false;
    }
  }
  if (open) task.bound.recompute = choice.recompute;
  return true;
}

/// There is no such bound in these cases:
/// - On hosts, ranks on the same core compute more slowly if they wait less. So a step without transfers may take
///   longer.
/// - Some options need shards, or have costs that sharding decreases.
/// - The order of passes of tied ends depends on where micro-batches accumulate.
bool MeshEvaluation::has_unsharded_bound(const MeshTask& task) const {
  const Policy of = policy(task, 0, task.choice.accumulate);
  const bool needs_shards = of.offload_state != Offload::kNone || of.offload_parameters != Offload::kNone ||
                            of.quantize_weights || of.quantize_gradients || of.reproducible || of.matrix_updates ||
                            of.accumulate_into == AccumulateInto::kShard;
  if (of.pipeline == 1 || task.model->cost.cores_per_thread > 0 || needs_shards) return false;
  return !accumulates_into_shard(of) || !pipeline_stages(task.model->model, of).back().tied_ends;
}

double MeshEvaluation::unsharded_seconds(const MeshTask& task) const {
  // Waits for memory differ from those of the sharded plan. They change the time by less than this.
  constexpr double kMargin = 0.99;
  const Mesh& mesh = task.choice.mesh;
  std::vector<int> ranks;
  for (int p = 0; p < mesh.pipeline; ++p) {
    for (int t = 0; t < mesh.tensor; ++t) ranks.push_back(mesh.rank({.pipeline = p, .tensor = t}));
  }
  const Topology topology = topology_of_group(topology_, ranks);
  const MeshEvaluation unsharded(options_, topology, limit_bytes_);
  MeshModel model = *task.model;
  model.cost.update_seconds_per_element = 0;
  MeshTask alone = task;
  alone.model = &model;
  alone.choice.mesh.replica = alone.choice.mesh.shard = 1;
  alone.choice.zero_stage = 1;
  alone.choice.gather_for = kGatherForAuto;
  const int recompute = recompute_of(task);
  const std::vector<Plan> stages = unsharded.plans(alone, recompute);
  return kMargin * Steps(unsharded, alone, recompute, stages).figures(model.cost).seconds;
}

std::vector<Plan> MeshEvaluation::plans(const MeshTask& task, MeshChoice& choice, const IsSlow& is_slow) const {
  const bool open = choice.recompute == kRecomputeAsNeeded;
  choice.recompute = recompute_of(task);
  std::vector<Plan> stages = plans(task, choice.recompute);
  while (open && most_rank_bytes(stages) > limit_bytes_) {
    if (choice.recompute >= most_recomputable(stages)) break;
    choice.recompute = next_recompute(stages, choice.recompute, limit_bytes_);
    if (is_slow(choice)) return {};
    stages = plans(task, choice.recompute);
  }
  if (open && choice.recompute > 0 && choice.recompute >= most_recomputable(stages)) choice.recompute = kRecomputeAll;
  return stages;
}

MeshResult MeshEvaluation::result(const MeshTask& task, const MeshChoice& choice,
                                  const std::vector<Plan>& stages) const {
  const StepFigures figures = Steps(*this, task, choice.recompute, stages).figures(task.model->cost);
  MeshResult made;
  made.choice = choice;
  made.rank_bytes = most_rank_bytes(stages);
  made.seconds = figures.seconds;
  made.sent_bytes = std::llround(figures.sent_bytes);
  made.crossing_bytes = std::llround(figures.crossing_bytes);
  return made;
}

bool MeshEvaluation::fits(const MeshTask& task, MeshResult& result) const {
  if (planned_micro_batches(task.choice) == task.choice.accumulate) return result.rank_bytes <= limit_bytes_;
  for (;;) {
    const std::vector<Plan> stages = full_plans(task, result.choice.recompute);
    result.rank_bytes = most_rank_bytes(stages);
    if (result.rank_bytes <= limit_bytes_) return true;
    const bool open = task.choice.recompute == kRecomputeAsNeeded;
    if (!open || result.choice.recompute >= most_recomputable(stages)) return false;
    MeshChoice choice = result.choice;
    choice.recompute = next_recompute(stages, choice.recompute, limit_bytes_);
    result = this->result(task, choice, plans(task, choice.recompute));
  }
}

std::vector<Plan> MeshEvaluation::full_plans(const MeshTask& task, int recompute) const {
  return plans(task, recompute, task.choice.accumulate);
}

void MeshEvaluation::set_shares(const MeshTask& task, MeshResult& result) const {
  const std::vector<Plan> stages = plans(task, result.choice.recompute);
  const Steps steps(*this, task, result.choice.recompute, stages);
  constexpr LinkCost kNoTime = {.bytes_per_second = 1e30, .latency_seconds = 0};
  CostModel cost = task.model->cost;
  double compute = steps.figures(cost).compute_seconds;
  cost.between_nodes = cost.beside_compute = kNoTime;
  const double without_network = std::min(steps.figures(cost).seconds, result.seconds);
  cost.inside_node = kNoTime;
  const double without_links = std::min(steps.figures(cost).seconds, without_network);
  compute = std::min(compute, without_links);
  result.shares = {.compute = compute / result.seconds,
                   .waits = (without_links - compute) / result.seconds,
                   .inside_node = (without_network - without_links) / result.seconds,
                   .between_nodes = (result.seconds - without_network) / result.seconds};
}

int MeshEvaluation::planned_micro_batches(const MeshChoice& choice) const {
  const auto steps = sampled_steps(choice, options_.engine.reproducible);
  return steps ? steps->more : choice.accumulate;
}

Policy MeshEvaluation::policy(const MeshTask& task, int recompute, int micro_batches) const {
  Policy made = policy_of(with_choice(options_, task.choice), task.choice.zero_stage);
  made.pipeline_cut = *task.cut;
  made.recompute = recompute;
  made.micro_batch_count = micro_batches;
  return made;
}

std::vector<Plan> MeshEvaluation::plans(const MeshTask& task, int recompute, int micro_batches) const {
  return plans_of({}, task.model->model, policy(task, recompute, micro_batches), topology_, task.model->cost);
}

std::vector<Plan> MeshEvaluation::plans(const MeshTask& task, int recompute) const {
  return plans(task, recompute, planned_micro_batches(task.choice));
}

}  // namespace aliquot
