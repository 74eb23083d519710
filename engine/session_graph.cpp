// Passes that a GPU repeats as a graph.
#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <utility>

#include "engine/session.h"
#include "kernels/system/error.h"
#include "kernels/system/fault_point.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {

/// Returns why the passes of this rank cannot be captured, or "". `compute`: the user's stream, or null.
std::string Session::graph_obstacle(Stream* compute) const {
  if (world_.device().kind() == DeviceKind::kHost) return "this rank computes on a host";
  if (compute != nullptr && !can_capture(*compute))
    return "the compute stream is CUDA's default stream, which cannot be captured";
  if (!std::ranges::all_of(groups_.communicators(), &Communicator::can_capture))
    return "ranks share a GPU or read one another's memory";
  if (options_.update_in_backward) return "update_in_backward updates parameters during the passes";
  if (options_.replay_every != 0) return "replay_every adds work to some steps only";
  if (plan_->policy.check) return "the checking mode runs host code during the passes";
  if (options_.check_state) return "check_state compares digests of each step";
  if (faults_ != nullptr) return "the environment variable ALIQUOT_FAULT is set";
  return "";
}

/// Decides on all ranks alike whether run_passes() captures. Collective.
void Session::agree_on_graph(Stream* compute) {
  const bool required = options_.graph == GraphMode::kOn;
  const bool is_alone = world_.rank_count() == 1 && world_.device().kind() == DeviceKind::kCuda;
  if (options_.graph == GraphMode::kOff || (!required && !is_alone)) return;
  const ScopedCollectivePurpose purpose("agree on a graph");
  const auto obstacles = world_.communicator().gather_objects(graph_obstacle(compute));
  const auto found = std::ranges::find_if(obstacles, [](const std::string& obstacle) { return !obstacle.empty(); });
  captures_passes_ = found == obstacles.end();
  if (captures_passes_ || !required) return;
  throw UsageError(fmt::format("EngineOptions::graph is on, but the passes of rank {} cannot be captured: {}",
                               found - obstacles.begin(), *found));
}

/// Whether a graph runs the passes of this step. All ranks get the same answer. An earlier step has run without a
/// graph, because libraries allocate memory and load kernels when they are first used.
bool Session::has_graph_in_this_step() const {
  return captures_passes_ && ran_all_passes_ && !gradient_detector_.enabled() && !random_faults_enabled();
}

void Session::run_passes(const std::function<void()>& passes) {
  require_nothing_live();
  refuse_abandoned();
  refuse_unfinished_evaluation();
  if (micro_batch_ >= 0)
    throw UsageError("run_passes() was called after a micro-batch of this step: call step() first");
  if (!has_graph_in_this_step()) return run_all_passes(passes);
  activate(executor_);
  in_evaluation_ = false;
  std::unique_ptr<WorkGraph>& graph = graph_of_step();
  if (graph == nullptr) return capture(passes, graph);
  begin_step();
  repeat(*graph);
}

/// Launches the graph of an earlier step in place of the passes.
void Session::repeat(WorkGraph& graph) {
  try {
    executor_.skip_passes();
    micro_batch_ = options_.accumulate - 1;
    executor_.launch(graph);
  } catch (...) {
    unusable_ = true;  // the gradients are those of an earlier step
    throw;
  }
}

/// Returns the place of this step's graph, which may be null.
std::unique_ptr<WorkGraph>& Session::graph_of_step() {
  if (decider_.loss_scale() != graph_loss_scale_) graphs_ = {};
  graph_loss_scale_ = decider_.loss_scale();
  // The marks of a recorder differ between consecutive steps.
  return graphs_[recorder_ ? static_cast<std::size_t>(executor_.step()) % graphs_.size() : 0];
}

/// Abandons the step if `passes` throws or omits a use.
void Session::run_all_passes(const std::function<void()>& passes) {
  called_run_passes_ = true;
  try {
    passes();
    finish_pending();
    require_nothing_live();
    if (abandoned_ || (trains() && executor_.at_end_of_passes())) return;
    throw UsageError(fmt::format("the function of run_passes() returned, but {}",
                                 micro_batch_ < 0 ? "ran no use" : "the declared order expects " + next_use_text()));
  } catch (...) {
    abandoned_ = true;
    throw;
  }
}

/// Captures the passes in `graph` and launches it. If this rank abandons them, it captures the remaining collectives
/// without model code, because the other ranks capture them too. end_step_of_graph() then discards the graph.
void Session::capture(const std::function<void()>& passes, std::unique_ptr<WorkGraph>& graph) {
  captured_in_step_ = true;
  try {
    executor_.begin_capture();
  } catch (...) {
    fail_capture(std::current_exception());
  }
  std::exception_ptr thrown;
  try {
    run_all_passes(passes);
  } catch (...) {
    thrown = std::current_exception();
  }
  // After these failures, the executor cannot run the remaining collectives.
  if (failure_ != nullptr) {
    thrown = std::exchange(failure_, nullptr);
    unusable_ = true;
  }
  if (unusable_ || !live_units_.empty()) return fail_capture(thrown);
  try {
    if (micro_batch_ < 0) begin_step();
    if (abandoned_) skip_rest_of_passes();
    micro_batch_ = options_.accumulate - 1;
    graph = executor_.end_capture();
    executor_.launch(*graph);
  } catch (...) {  // the capture is invalid, or communication failed
    fail_capture(thrown != nullptr ? thrown : std::current_exception());
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void Session::fail_capture(const std::exception_ptr& why) {
  unusable_ = true;
  executor_.discard_capture();
  std::rethrow_exception(why);
}

/// Runs the passes of an abandoned step. The other ranks launch a graph and wait for this rank in its collectives, so
/// this rank launches its graph too. Its model code then uses old samples, and the gradients are not used.
void Session::run_abandoned_graph() {
  std::unique_ptr<WorkGraph>& graph = graph_of_step();
  if (graph == nullptr) return capture([] {}, graph);
  repeat(*graph);
}

/// Called after each step. A graph captured in an abandoned step may lack the model code of one rank. That rank must
/// capture again, and so must all others: in a capture, ranks compare collectives and NCCL may exchange addresses.
void Session::end_step_of_graph() {
  const bool completed = decider_.report().abandoned_by < 0;
  if (captured_in_step_ && !completed) graphs_ = {};
  captured_in_step_ = false;
  if (completed && called_run_passes_) ran_all_passes_ = true;
  called_run_passes_ = false;
}

}  // namespace aliquot
