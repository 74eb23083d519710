#include "apps/plan/mesh_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>

#include "apps/models/parameters.h"
#include "apps/plan/mesh_bound.h"
#include "apps/plan/planned_run.h"
#include "engine/choose/budget.h"
#include "engine/choose/pipeline_schedule.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/start_thread.h"

namespace aliquot {
namespace {

using MeshKey = std::tuple<int, int, int, int>;

MeshKey key_of(const Mesh& mesh) { return {mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor}; }

/// What a worker needs to plan a choice. Other threads may change the caches of MeshBounds meanwhile, but not what
/// this refers to.
struct Task {
  std::size_t index = 0;
  MeshChoice choice;
  MeshBound bound;
  const MeshModel* model = nullptr;
  const PipelineCut* cut = nullptr;
};

int64_t most_rank_bytes(const std::vector<Plan>& stages) {
  int64_t most = 0;
  for (const Plan& stage : stages) most = std::max(most, rank_bytes(stage));
  return most;
}

/// The micro-batches of the two steps from which a step with more micro-batches is extrapolated. Once a pipeline is
/// full, each further micro-batch adds the same time and traffic.
struct SampledSteps {
  int few, more;
};

/// Returns nothing if the step of the choice has so few micro-batches that it is simulated itself.
std::optional<SampledSteps> sampled_steps(const MeshChoice& choice) {
  if (choice.schedule == PipelineSchedule::kGpipe) return std::nullopt;  // memory grows with each micro-batch
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

/// Replaces the figures of a step with steps.more micro-batches by those of a step with `count` micro-batches.
void extrapolate(const std::vector<StepFigures>& few, std::vector<StepFigures>& more, const SampledSteps& steps,
                 int count) {
  const double times = static_cast<double>(count - steps.more) / (steps.more - steps.few);
  for (std::size_t s = 0; s < more.size(); ++s) {
    for (const auto figure : kStepFigures) more[s].*figure += times * (more[s].*figure - few[s].*figure);
  }
}

/// Plans and simulates choices of one run.
class Evaluation {
 public:
  Evaluation(const PlanOptions& options, const Topology& topology, int64_t limit_bytes)
      : options_(options), topology_(topology), limit_bytes_(limit_bytes) {}

  /// Plans the choice with `recompute` recomputed uses of each pipeline stage. The step may have fewer micro-batches:
  /// see sampled_steps().
  std::vector<Plan> plans(const Task& task, int recompute) const {
    const auto steps = samples(task.choice);
    return plans(task, recompute, steps ? steps->more : task.choice.accumulate);
  }

  /// Plans the choice. If it leaves the number of recomputed uses open, sets the smallest number with which the plans
  /// fit. The result may not fit. Returns nothing if `is_slow` returns true for a number that is too small.
  std::vector<Plan> plans(const Task& task, MeshChoice& choice,
                          const std::function<bool(const MeshChoice&)>& is_slow) const {
    const bool open = choice.recompute == kRecomputeAsNeeded;
    if (open) choice.recompute = task.bound.recompute;
    std::vector<Plan> stages = plans(task, choice.recompute);
    for (int64_t bytes = most_rank_bytes(stages); open && bytes > limit_bytes_; bytes = most_rank_bytes(stages)) {
      const int64_t saved = saved_by_recompute(stages);
      const int next = choice.recompute + static_cast<int>(std::max<int64_t>((bytes - limit_bytes_) / saved, 1));
      if (choice.recompute >= recomputable(stages)) break;
      choice.recompute = std::min(next, recomputable(stages));
      if (is_slow(choice)) return {};
      stages = plans(task, choice.recompute);
    }
    if (open && choice.recompute >= recomputable(stages) && choice.recompute > 0) choice.recompute = kRecomputeAll;
    return stages;
  }

  /// `stages` are the result of plans().
  MeshResult result(const Task& task, const MeshChoice& choice, const std::vector<Plan>& stages) const {
    const StepFigures figures = Steps(*this, task, choice.recompute, stages).figures(task.model->cost);
    MeshResult made;
    made.choice = choice;
    made.rank_bytes = most_rank_bytes(stages);
    made.seconds = figures.seconds;
    made.sent_bytes = std::llround(figures.sent_bytes);
    made.crossing_bytes = std::llround(figures.crossing_bytes);
    return made;
  }

  /// Sets the memory of a result to that of a plan with all micro-batches. If the plan does not fit and the choice
  /// leaves the number of recomputed uses open, increases this number. Returns whether the result fits.
  bool fits(const Task& task, MeshResult& result) const {
    if (!samples(task.choice)) return result.rank_bytes <= limit_bytes_;
    for (;;) {
      const std::vector<Plan> stages = full_plans(task, result.choice.recompute);
      result.rank_bytes = most_rank_bytes(stages);
      if (result.rank_bytes <= limit_bytes_) return true;
      if (task.choice.recompute != kRecomputeAsNeeded || result.choice.recompute >= recomputable(stages)) return false;
      MeshChoice choice = result.choice;
      const int64_t missing = (result.rank_bytes - limit_bytes_) / saved_by_recompute(stages);
      choice.recompute =
          std::min(choice.recompute + static_cast<int>(std::max<int64_t>(missing, 1)), recomputable(stages));
      result = this->result(task, choice, plans(task, choice.recompute));
    }
  }

  /// Plans the choice with all micro-batches.
  std::vector<Plan> full_plans(const Task& task, int recompute) const {
    return plans(task, recompute, task.choice.accumulate);
  }

  /// Sets the shares of a result by two more simulations.
  void set_shares(const Task& task, MeshResult& result) const {
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

 private:
  /// With reproducible sums, memory grows with the number of micro-batches.
  std::optional<SampledSteps> samples(const MeshChoice& choice) const {
    return options_.engine.reproducible ? std::nullopt : sampled_steps(choice);
  }

  std::vector<Plan> plans(const Task& task, int recompute, int micro_batches) const {
    Policy policy = policy_of(with_choice(options_, task.choice), task.choice.zero_stage);
    policy.pipeline_cut = *task.cut;
    policy.recompute = recompute;
    policy.micro_batch_count = micro_batches;
    return plans_of({}, task.model->model, policy, topology_, task.model->cost);
  }

  /// The plans of one or two steps of a choice.
  class Steps {
   public:
    Steps(const Evaluation& of, const Task& task, int recompute, const std::vector<Plan>& stages)
        : count_(task.choice.accumulate), sampled_(of.samples(task.choice)), stages_(stages) {
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

  /// The largest number of recomputable uses of a pipeline stage.
  static int recomputable(const std::vector<Plan>& stages) {
    int most = 0;
    for (const Plan& stage : stages) {
      Policy all = stage.policy;
      all.recompute = kRecomputeAll;
      most = std::max(most, static_cast<int>(std::ranges::count(recomputed_uses(stage.model, all, stage.stage), true)));
    }
    return most;
  }
  /// The largest number of bytes that one more recomputed use may save on a pipeline stage.
  static int64_t saved_by_recompute(const std::vector<Plan>& stages) {
    int64_t most = 1;
    for (const Plan& stage : stages) {
      for (const UseActivations& use : stage.model.activations.uses) {
        if (use.recomputable) most = std::max(most, use.kept_bytes * stage.schedule.micro_batches_in_flight);
      }
    }
    return most;
  }

  const PlanOptions& options_;
  const Topology& topology_;
  int64_t limit_bytes_;
};

/// The shared state of the workers.
class Search {
 public:
  Search(const PlanOptions& options, const Machine& machine, const MeshSearchOptions& how)
      : how_(how),
        limit_(memory_limit(options, machine)),
        bounds_(options, machine, limit_bytes()),
        evaluation_(options, bounds_.topology(), limit_bytes()) {
    result_.limit = limit_;
    result_.global_batch = global_batch_of(options);
    const ModelSpec& model = bounds_.model(1, options.micro_batch).model;
    result_.parameters = parameter_count(model);
    result_.tokens = static_cast<double>(result_.global_batch) *
                     static_cast<double>(options.sequence.value_or(model_shape(options).context));
    const bool splits = std::ranges::any_of(model.activations.uses, &UseActivations::splits_backward);
    queue_all(mesh_choices(options, std::ssize(model.uses), splits));
  }

  MeshSearch run() {
    std::vector<std::thread> threads;
    const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const int count = how_.threads > 0 ? how_.threads : cores;
    for (int i = 1; i < count; ++i) threads.push_back(start_thread("--mesh auto", [this] { work(); }));
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    collect();
    return std::move(result_);
  }

 private:
  int64_t limit_bytes() const { return limit_ ? limit_->bytes : std::numeric_limits<int64_t>::max(); }

  /// Queues the choices whose bound fits, by the bounds of their times. Without bounds, all times and sizes are 0.
  void queue_all(const std::vector<MeshChoice>& choices) {
    std::map<MeshKey, bool> meshes;
    for (const MeshChoice& choice : choices) {
      Task task;
      task.index = tasks_.size();
      task.choice = choice;
      try {
        if (how_.uses_bounds) task.bound = bounds_.of(choice);
        task.model = &bounds_.model(choice.mesh.tensor, choice.micro_batch);
        task.cut = &bounds_.cut(choice);
      } catch (const UsageError&) {  // the model cannot be divided in this way
        refusal_ = std::current_exception();
        continue;
      }
      meshes[key_of(choice.mesh)] = true;
      tasks_.push_back(task);
      if (task.bound.bytes <= limit_bytes()) queue_.emplace(task.bound.seconds, task.index);
    }
    result_.choices = std::ssize(tasks_);
    result_.meshes = std::ssize(meshes);
    if (!tasks_.empty()) return;
    if (refusal_) std::rethrow_exception(refusal_);
    throw UsageError(
        fmt::format("--mesh auto: with the given options, no mesh divides the model, the global batch of {} sequences "
                    "and the ranks of a node: change --ranks, --global-batch or --micro-batch, or leave out an option "
                    "that restricts the mesh.",
                    result_.global_batch));
  }

  /// The time that a choice of this mesh must not exceed to be among the results.
  double time_to_beat(const Mesh& mesh) const {
    const auto own = best_.find(key_of(mesh));
    const double of_mesh = own == best_.end() ? std::numeric_limits<double>::infinity() : own->second.first.seconds;
    if (std::cmp_less(best_.size(), how_.count)) return of_mesh;
    std::vector<double> times;
    for (const auto& [key, found] : best_) times.push_back(found.first.seconds);
    std::ranges::nth_element(times, times.begin() + (how_.count - 1));
    return std::min(of_mesh, times[static_cast<std::size_t>(how_.count - 1)]);
  }

  void work() {
    try {
      while (const Task* task = next()) evaluate(*task);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      queue_ = {};
    }
  }

  const Task* next() {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty()) {
      const Task& task = tasks_[queue_.top().second];
      queue_.pop();
      if (task.bound.seconds > time_to_beat(task.choice.mesh)) continue;
      ++result_.planned;
      return &task;
    }
    return nullptr;
  }

  /// Whether the choice cannot be among the results, by the bound of its time.
  bool is_slow(const MeshChoice& choice) {
    const std::lock_guard lock(mutex_);
    return how_.uses_bounds && bounds_.of(choice).seconds > time_to_beat(choice.mesh);
  }

  /// Counts a simulated choice, and returns whether it is fast enough to be among the results.
  bool can_be_result(const MeshResult& made) {
    const std::lock_guard lock(mutex_);
    ++result_.simulated;
    return !how_.uses_bounds || made.seconds <= time_to_beat(made.choice.mesh);
  }

  void evaluate(const Task& task) {
    MeshChoice choice = task.choice;
    std::vector<Plan> stages;
    try {
      stages = evaluation_.plans(task, choice, [this](const MeshChoice& each) { return is_slow(each); });
    } catch (const UsageError&) {
      const std::lock_guard lock(mutex_);
      refusal_ = std::current_exception();
      return;
    }
    if (stages.empty() || most_rank_bytes(stages) > limit_bytes()) return;
    MeshResult made = evaluation_.result(task, choice, stages);
    if (!can_be_result(made) || !evaluation_.fits(task, made)) return;
    const std::lock_guard lock(mutex_);
    const auto [own, is_first] = best_.try_emplace(key_of(choice.mesh), made, task.index);
    const bool is_better = std::tie(made.seconds, task.index) < std::tie(own->second.first.seconds, own->second.second);
    if (!is_first && is_better) own->second = {made, task.index};
  }

  /// Sets the results from the best choice of each mesh.
  void collect() {
    std::vector<std::pair<MeshResult, std::size_t>> found;
    for (const auto& [key, each] : best_) found.push_back(each);
    std::ranges::sort(found, {}, [](const auto& each) { return std::pair(each.first.seconds, each.second); });
    if (std::cmp_greater(found.size(), how_.count)) found.resize(static_cast<std::size_t>(how_.count));
    for (auto& [each, index] : found) {
      evaluation_.set_shares(tasks_[index], each);
      result_.best.push_back(each);
    }
    if (result_.best.empty()) set_smallest();
  }

  void set_smallest() {
    const auto by_bytes = [](const Task& task) { return std::pair(task.bound.bytes, task.bound.seconds); };
    const Task& task = *std::ranges::min_element(tasks_, {}, by_bytes);
    MeshChoice choice = task.choice;
    evaluation_.plans(task, choice, [](const MeshChoice&) { return false; });  // sets the recomputed uses
    result_.smallest.emplace();
    result_.smallest->choice = choice;
    result_.smallest->rank_bytes = most_rank_bytes(evaluation_.full_plans(task, choice.recompute));
  }

  MeshSearchOptions how_;
  std::optional<RankMemoryLimit> limit_;
  MeshBounds bounds_;  // protected by mutex_ while threads work
  Evaluation evaluation_;
  std::vector<Task> tasks_;
  using Entry = std::pair<double, std::size_t>;  // the bound of the time, and the index of the task
  std::mutex mutex_;                             // protects the members below
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::map<MeshKey, std::pair<MeshResult, std::size_t>> best_;
  std::exception_ptr failure_, refusal_;
  MeshSearch result_;
};

}  // namespace

std::string MeshSearch::reason(const std::string& machine) const {
  const std::string memory = limit ? fmt::format(" {} of {}", format_bytes(limit->bytes), limit->source) : " memory";
  if (best.empty()) {
    return fmt::format("no mesh fits in{}: the smallest found needs {} per rank ({})", memory,
                       format_bytes(smallest->rank_bytes), options_text(smallest->choice));
  }
  const MeshResult& first = best.front();
  return fmt::format(
      "{}: the fastest of {} mesh{} that fits in{}, by simulation with the rates of {}: {:.3g} s per step",
      mesh_text(first.choice.mesh), meshes, meshes == 1 ? "" : "es", memory, machine, first.seconds);
}

MeshSearch search_meshes(const PlanOptions& options, const Machine& machine, const MeshSearchOptions& how) {
  if (options.params)
    throw UsageError(
        "--mesh auto needs the layers of a model, and --params gives only a number of parameters: use --model.");
  return Search(options, machine, how).run();
}

}  // namespace aliquot
