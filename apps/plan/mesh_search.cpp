#include "apps/plan/mesh_search.h"

#include <algorithm>
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

double step_seconds(const std::vector<Timeline>& timelines) {
  double most = 0;
  for (const Timeline& timeline : timelines) most = std::max(most, timeline.step_seconds);
  return most;
}

/// Plans and simulates choices of one run.
class Evaluation {
 public:
  Evaluation(const PlanOptions& options, const Topology& topology, int64_t limit_bytes)
      : options_(options), topology_(topology), limit_bytes_(limit_bytes) {}

  /// Plans the choice with `recompute` recomputed uses of each pipeline stage.
  std::vector<Plan> plans(const Task& task, int recompute) const {
    Policy policy = policy_of(with_choice(options_, task.choice), task.choice.zero_stage);
    policy.pipeline_cut = *task.cut;
    policy.recompute = recompute;
    return plans_of({}, task.model->model, policy, topology_, task.model->cost);
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

  MeshResult result(const Task& task, const MeshChoice& choice, const std::vector<Plan>& stages) const {
    const std::vector<Timeline> timelines = simulate(stages, task.model->cost);
    MeshResult made;
    made.choice = choice;
    made.rank_bytes = most_rank_bytes(stages);
    made.seconds = step_seconds(timelines);
    for (const Timeline& timeline : timelines) made.sent_bytes = std::max(made.sent_bytes, timeline.sent_bytes);
    made.crossing_bytes = crossing_bytes_of_first_node(stages, timelines);
    return made;
  }

  /// Sets the shares of a result by two more simulations.
  void set_shares(const Task& task, MeshResult& result) const {
    const std::vector<Plan> stages = plans(task, result.choice.recompute);
    constexpr LinkCost kNoTime = {.bytes_per_second = 1e30, .latency_seconds = 0};
    CostModel cost = task.model->cost;
    double compute = 0;
    for (const Timeline& timeline : simulate(stages, cost)) compute = std::max(compute, timeline.compute_seconds);
    cost.between_nodes = cost.beside_compute = kNoTime;
    const double without_network = std::min(step_seconds(simulate(stages, cost)), result.seconds);
    cost.inside_node = kNoTime;
    const double without_links = std::min(step_seconds(simulate(stages, cost)), without_network);
    compute = std::min(compute, without_links);
    result.shares = {.compute = compute / result.seconds,
                     .waits = (without_links - compute) / result.seconds,
                     .inside_node = (without_network - without_links) / result.seconds,
                     .between_nodes = (result.seconds - without_network) / result.seconds};
  }

 private:
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
        fmt::format("--mesh auto: no mesh divides the global batch of {} sequences and the model: change --ranks, "
                    "--global-batch or --micro-batch.",
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
    const MeshResult made = evaluation_.result(task, choice, stages);
    const std::lock_guard lock(mutex_);
    ++result_.simulated;
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
    const std::vector<Plan> stages = evaluation_.plans(task, choice, [](const MeshChoice&) { return false; });
    result_.smallest.emplace();
    result_.smallest->choice = choice;
    result_.smallest->rank_bytes = most_rank_bytes(stages);
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
      "{}: the fastest of {} meshes that fits in{}, by simulation with the rates of {}: {:.3g} s per "
      "step, {} per rank",
      mesh_text(first.choice.mesh), meshes, memory, machine, first.seconds, format_bytes(first.rank_bytes));
}

MeshSearch search_meshes(const PlanOptions& options, const Machine& machine, const MeshSearchOptions& how) {
  if (options.params)
    throw UsageError(
        "--mesh auto needs the layers of a model, and --params gives only a number of parameters: use --model.");
  return Search(options, machine, how).run();
}

}  // namespace aliquot
