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
#include "apps/plan/mesh_evaluation.h"
#include "apps/plan/planned_run.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/start_thread.h"
#include "sharding/cores.h"

namespace aliquot {
namespace {

using MeshKey = std::tuple<int, int, int, int>;

MeshKey key_of(const Mesh& mesh) { return {mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor}; }

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
    const int count = how_.threads > 0 ? how_.threads : allowed_core_count();
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
      MeshTask task;
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
      while (MeshTask* task = next()) evaluate(*task);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      queue_ = {};
    }
  }

  MeshTask* next() {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && !failure_) {
      MeshTask& task = tasks_[queue_.top().second];
      queue_.pop();
      if (task.bound.seconds > time_to_beat(task.choice.mesh)) continue;
      return &task;
    }
    return nullptr;
  }

  /// Whether the choice cannot be among the results, by the bound of its time.
  bool is_slow(const MeshChoice& choice) {
    const std::lock_guard lock(mutex_);
    return how_.uses_bounds && bounds_.of(choice).seconds > time_to_beat(choice.mesh);
  }

  void count_planned() {
    const std::lock_guard lock(mutex_);
    ++result_.planned;
  }

  /// Counts a simulated choice, and returns whether it is fast enough to be among the results.
  bool can_be_result(const MeshResult& made) {
    const std::lock_guard lock(mutex_);
    ++result_.simulated;
    return !how_.uses_bounds || made.seconds <= time_to_beat(made.choice.mesh);
  }

  void evaluate(MeshTask& task) {
    try {
      switch (task.choice.mesh.pipeline > 1 && how_.uses_bounds ? task.next : MeshTask::Next::kSimulate) {
        case MeshTask::Next::kFitEnds: return fit_ends(task);
        case MeshTask::Next::kUnsharded: return add_unsharded_bound(task);
        case MeshTask::Next::kSimulate: return simulate(task);
      }
    } catch (const UsageError&) {
      const std::lock_guard lock(mutex_);
      refusal_ = std::current_exception();
    }
  }

  /// Improves the bound of a choice, and queues the choice again if it may still be among the results. So only choices
  /// whose improved bounds are low are planned completely.
  void fit_ends(MeshTask& task) {
    if (!evaluation_.fit_ends(task, [this](const MeshChoice& each) { return is_slow(each); })) return;
    task.next = evaluation_.has_unsharded_bound(task) ? MeshTask::Next::kUnsharded : MeshTask::Next::kSimulate;
    MeshChoice choice = task.choice;
    choice.recompute = recompute_of(task);
    const std::lock_guard lock(mutex_);
    task.bound.seconds = bounds_.of(choice).seconds;
    queue_.emplace(task.bound.seconds, task.index);
  }

  /// Improves the bound of a choice as fit_ends() does. Choices that differ only in sharding have this bound in common.
  void add_unsharded_bound(MeshTask& task) {
    task.next = MeshTask::Next::kSimulate;
    const MeshChoice& choice = task.choice;
    const UnshardedKey key{choice.mesh.pipeline,
                           choice.mesh.tensor,
                           choice.micro_batch,
                           choice.virtual_stages,
                           static_cast<int>(choice.schedule),
                           recompute_of(task)};
    std::unique_lock lock(mutex_);
    auto found = unsharded_.find(key);
    if (found == unsharded_.end()) {
      lock.unlock();
      const double seconds = evaluation_.unsharded_seconds(task);
      lock.lock();
      found = unsharded_.emplace(key, seconds).first;
    }
    task.bound.seconds = std::max(task.bound.seconds, found->second);
    queue_.emplace(task.bound.seconds, task.index);
  }

  void simulate(const MeshTask& task) {
    count_planned();
    MeshChoice choice = task.choice;
    const std::vector<Plan> stages =
        evaluation_.plans(task, choice, [this](const MeshChoice& each) { return is_slow(each); });
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

  /// Sets MeshSearch::smallest to the choice with the lowest bound of memory, of those that can be planned.
  void set_smallest() {
    std::ranges::sort(tasks_, {}, [](const MeshTask& task) { return std::pair(task.bound.bytes, task.bound.seconds); });
    for (const MeshTask& task : tasks_) {
      try {
        MeshChoice choice = task.choice;
        evaluation_.plans(task, choice, [](const MeshChoice&) { return false; });  // sets the recomputed uses
        result_.smallest.emplace();
        result_.smallest->rank_bytes = most_rank_bytes(evaluation_.full_plans(task, choice.recompute));
        result_.smallest->choice = choice;
        return;
      } catch (const UsageError&) {
        refusal_ = std::current_exception();
      }
    }
    std::rethrow_exception(refusal_);
  }

  MeshSearchOptions how_;
  std::optional<RankMemoryLimit> limit_;
  MeshBounds bounds_;  // protected by mutex_ while threads work
  MeshEvaluation evaluation_;
  std::vector<MeshTask> tasks_;
  using Entry = std::pair<double, std::size_t>;  // the bound of the time, and the index of the task
  std::mutex mutex_;                             // protects the members below
  using UnshardedKey = std::tuple<int, int, int64_t, int, int, int>;
  std::map<UnshardedKey, double> unsharded_;
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
