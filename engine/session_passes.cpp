// The calls of a step or evaluation. Checks their order and runs the operations between uses.
#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/plan/use_collectives.h"
#include "engine/session.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::string_view name(UseKind kind) {
  switch (kind) {
    case UseKind::kForward: return "forward";
    case UseKind::kBackward: return "backward";
    case UseKind::kEvaluate: return "evaluate";
    case UseKind::kBackwardInput: return "backward-input";
    case UseKind::kBackwardWeights: return "backward-weights";
  }
  return "";
}

/// Throws UsageError if a call names a unit twice.
void refuse_repeated(const ModelSpec& model, std::span<const UnitId> units, UseKind kind) {
  for (const UnitId unit : units) {
    if (std::ranges::count(units, unit) < 2 || unit < 0 || std::cmp_greater_equal(unit, model.units.size())) continue;
    throw UsageError(fmt::format("one call of {} names unit {} twice: expected each unit at most once", name(kind),
                                 model.units[unit].name));
  }
}

}  // namespace

std::string Session::unit_names(std::span<const UnitId> units) const {
  const auto count = static_cast<UnitId>(plan_->model.units.size());
  std::string names;
  for (const UnitId unit : units) {
    if (unit < 0 || unit >= count)
      throw UsageError(fmt::format("invalid unit id {}: expected an id below {}", unit, count));
    names += (names.empty() ? "" : " with ") + plan_->model.units[unit].name;
  }
  return names;
}

UseKind Session::next_kind() const {
  OperationId id = active_->next();
  while (!is_model_code(active_->operation(id).verb) || active_->operation(id).verb == Verb::kRecompute) ++id;
  return kind_of(active_->operation(id).verb);
}

UseKind Session::kind_of(Verb verb) const {
  switch (verb) {
    case Verb::kForward: return evaluates() ? UseKind::kEvaluate : UseKind::kForward;
    case Verb::kBackwardInput: return UseKind::kBackwardInput;
    case Verb::kBackwardWeights: return UseKind::kBackwardWeights;
    default: return UseKind::kBackward;
  }
}

std::string Session::next_use_text() const {
  if (!is_model_code(next_operation().verb)) return "step()";
  return fmt::format("{} of {}", name(next_kind()), unit_names(plan_->model.uses[next_operation().operand]));
}

bool Session::is_next(std::span<const UnitId> units) const {
  return active_->at_model_code() && std::ranges::is_permutation(plan_->model.uses[next_operation().operand], units);
}

void Session::refuse_abandoned() const {
  if (abandoned_) throw UsageError("this step was abandoned: call step() first, which skips the update on all ranks");
}

/// Throws UsageError if an evaluation is not finished.
void Session::refuse_unfinished_evaluation() const {
  if (!evaluates() || active_->at_start_of_step()) return;
  throw UsageError(fmt::format("an evaluation is not finished: {} comes next", next_use_text()));
}

void Session::begin_step() {
  digests_.begin_step(updater_);
  executor_.set_reported_step(decider_.step_count() + 1);
  executor_.set_computes_digests(replay_progress_ == ReplayProgress::kReplayed);
}

void Session::begin_micro_batch() {
  in_evaluation_ = false;
  require_nothing_live();
  refuse_abandoned();
  refuse_unfinished_evaluation();
  if (micro_batch_ + 1 == options_.accumulate)
    throw UsageError(
        fmt::format("EngineOptions::accumulate is {}, and this step already has that many micro-batches: call step()",
                    options_.accumulate));
  Executor& executor = activate(executor_);
  if (micro_batch_ < 0) begin_step();
  executor.run_to_model_code();
  const Operation& next = next_operation();
  if (next.micro_batch != micro_batch_ + 1 || next.verb != Verb::kForward || next.operand != plan_->stage.first_use())
    throw UsageError(fmt::format("micro-batch {} is not finished: {} comes next", micro_batch_, next_use_text()));
  ++micro_batch_;
}

void Session::refuse_open_scope() const {
  if (live_units_.empty()) return;
  throw UsageError(fmt::format(
      "the scope of unit {} is still open: close it before you open another, or open both units with one call",
      plan_->model.units[live_units_.front()].name));
}

void Session::require_in_order(std::span<const UnitId> units, UseKind kind) const {
  refuse_open_scope();
  const Operation& next = next_operation();
  const bool in_order =
      is_next(units) && kind == next_kind() && (kind != UseKind::kForward || next.micro_batch <= micro_batch_);
  if (in_order) return;
  throw UsageError(fmt::format("{} of {} was opened, but the declared order expects {}", name(kind), unit_names(units),
                               next_use_text()));
}

void Session::open(std::span<const UnitId> units, UseKind kind) {
  refuse_abandoned();
  refuse_repeated(plan_->model, units, kind);
  if (kind == UseKind::kEvaluate) {
    if (micro_batch_ >= 0)
      throw UsageError("evaluate() must be called between steps: the current step is not finished");
    refuse_open_scope();
    begin_evaluation(units);
  } else if (micro_batch_ < 0) {
    throw UsageError("a unit was opened outside of a micro-batch: call micro_batch() first");
  }
  require_in_order(units, kind);
  if (next_operation().verb == Verb::kRecompute) recompute(units);
  make_live(units, kind);
}

bool Session::open_next() {
  require_nothing_live();
  refuse_abandoned();
  if (open_next_replay()) return true;
  if (micro_batch_ < 0) begin_micro_batch();
  if (executor_.at_end_of_passes()) return compare_replay() && open_next_replay();
  const Operation& next = next_operation();
  if (next.verb == Verb::kForward && next.micro_batch > micro_batch_) begin_micro_batch();
  open(plan_->model.uses[next.operand], next_kind());
  return true;
}

bool Session::open_next_evaluation() {
  require_nothing_live();
  const bool at_start = !evaluates() || active_->at_start_of_step();
  if (in_evaluation_ && at_start) return in_evaluation_ = false;
  const int32_t use = at_start ? plan_->stage.first_use() : next_operation().operand;
  open(plan_->model.uses[use], UseKind::kEvaluate);
  return in_evaluation_ = true;
}

void Session::make_live(std::span<const UnitId> units, UseKind kind) {
  const OperationId next = active_->next();
  const int32_t place = active_->operation(next).operand;
  ModelAddresses& addresses = this->addresses();
  active_->open();
  addresses.open(active_->stream(Lane::kCompute), next);
  live_units_.assign(units.begin(), units.end());
  const Verb verb = active_->operation(next).verb;
  for (const UnitId unit : units) bindings_.open(unit, verb, addresses);
  use_memory_ = addresses.memory_of_use(place, verb);
  use_memory_.recomputed = kind != UseKind::kEvaluate && recomputed_[place];
  if (verb == Verb::kRecompute && has_collective_in_output(*plan_, place)) use_memory_.output = nullptr;
  use_memory_.collectives = this;
  open_code_ = next;
  last_collective_ = -1;
}

/// The collective that the open scope must run next, or null after the last one.
const UseCollective* Session::next_collective() const {
  if (plan_->model.activations.uses.empty()) return nullptr;
  const Operation& code = active_->operation(open_code_);
  const UseActivations& use = plan_->model.activations.uses[code.operand];
  const auto next = aliquot::next_collective(use, code.verb, last_collective_);
  return next ? &use.collectives[*next] : nullptr;
}

void Session::run_collective(std::string_view name) {
  if (live_units_.empty()) throw UsageError(fmt::format("the collective \"{}\" was run while no scope is open", name));
  const UseCollective* next = next_collective();
  if (next == nullptr || next->name != name) {
    throw UsageError(fmt::format("the collective \"{}\" was run in {} of {}, but the declared order expects {}", name,
                                 aliquot::name(active_->operation(open_code_).verb), unit_names(live_units_),
                                 next == nullptr ? "no further collective" : fmt::format("\"{}\"", next->name)));
  }
  const UseActivations& use = plan_->model.activations.uses[active_->operation(open_code_).operand];
  last_collective_ = static_cast<int32_t>(next - use.collectives.data());
  if (plan_->policy.tensor == 1) return;
  try {
    active_->run_collective();
  } catch (...) {  // close() must not run further collectives: ranks could then disagree, which would hide the cause
    unusable_ = true;
    throw;
  }
}

/// Abandons the step if the scope omitted collectives. The executor runs them, so that other ranks do not wait forever.
void Session::close_collectives(bool by_exception) {
  const UseCollective* omitted = by_exception || live_units_.empty() ? nullptr : next_collective();
  if (omitted == nullptr) return;
  abandoned_ = true;
  omission_ = std::make_exception_ptr(UsageError(fmt::format(
      "the scope of {} was closed, but its collective \"{}\" was not run", unit_names(live_units_), omitted->name)));
}

/// Runs the operation kRecompute, which precedes a backward. The model's code repeats the forward of the use.
void Session::recompute(std::span<const UnitId> units) {
  make_live(units, UseKind::kForward);
  try {
    recompute_(use_memory_);
  } catch (...) {
    close(true);
    throw;
  }
  close(false);
  finish_pending();
}

/// Prepares the next use of an evaluation. At the start of a pass, checks that `units` are the units of this pipeline
/// stage's first use, before the evaluator gathers any parameters.
void Session::begin_evaluation(std::span<const UnitId> units) {
  Executor& evaluator = evaluation_run_.executor;
  const bool begins = !evaluates() || evaluator.at_start_of_step();
  const auto& first = plan_->model.uses[plan_->stage.first_use()];
  if (begins && live_units_.empty() && !std::ranges::is_permutation(first, units)) {
    throw UsageError(fmt::format("evaluate of {} was opened, but the declared order expects evaluate of {}",
                                 unit_names(units), unit_names(first)));
  }
  if (begins) require_between_steps("evaluate()");
  activate(evaluator);
  if (begins) evaluator.set_reported_step(decider_.step_count());
  evaluator.run_to_model_code();
}

/// Whether the use ends a pass whose result another pipeline stage receives.
bool Session::sends_result(const Operation& use) const {
  const PipelineStage& stage = plan_->stage;
  const VirtualStage& run = stage.run_of_use(use.operand);
  if (use.verb == Verb::kBackwardWeights) return false;
  if (use.verb == Verb::kForward) return use.operand == run.last_use() && !stage.is_last(run);
  return use.operand == run.first_use && !run.is_first();
}

/// Whether the model code of the next use runs a collective, with its recompute.
bool Session::next_use_communicates() const {
  if (plan_->policy.tensor == 1 || plan_->model.activations.uses.empty()) return false;
  for (OperationId id = active_->next();; ++id) {
    const Operation& operation = active_->operation(id);
    if (!is_model_code(operation.verb)) continue;
    if (aliquot::next_collective(plan_->model.activations.uses[operation.operand], operation.verb)) return true;
    if (operation.verb != Verb::kRecompute) return false;
  }
}

/// Moves past the next use without running the model's code.
void Session::skip_use() {
  active_->open(true);
  active_->close();
}

void Session::skip(std::span<const UnitId> units) {
  require_nothing_live();
  if (micro_batch_ < 0) throw UsageError("skip() was called outside of a micro-batch: call micro_batch() first");
  const Operation& next = next_operation();
  if (!is_next(units) || (next.verb == Verb::kForward && next.micro_batch > micro_batch_)) {
    throw UsageError(
        fmt::format("{} was skipped, but the declared order expects {}", unit_names(units), next_use_text()));
  }
  if (sends_result(next)) {
    throw UsageError(
        fmt::format("{} was skipped, but another pipeline stage receives its result: open the use and "
                    "write the result, for example zeros",
                    next_use_text()));
  }
  if (next_kind() == UseKind::kBackwardInput) {
    throw UsageError(
        fmt::format("{} was skipped, but the second part of this backward reads its result: open the first part, and "
                    "skip only the second part",
                    next_use_text()));
  }
  if (next_use_communicates()) {
    throw UsageError(fmt::format(
        "{} was skipped, but the other ranks of the tensor group need its collectives: open the use and run them",
        next_use_text()));
  }
  if (next.verb == Verb::kRecompute) skip_use();
  skip_use();
}

void Session::close(bool by_exception) noexcept {
  for (const UnitId unit : live_units_) bindings_.close(unit);
  if (unusable_) return live_units_.clear();
  try {
    close_collectives(by_exception);
    live_units_.clear();
    if (by_exception || omission_) {
      abandoned_ = true;
      in_evaluation_ = false;
    }
    addresses().close(active_->stream(Lane::kCompute), open_code_);
    active_->close();
    if (trains() || !active_->at_end_of_passes()) return;
    // After the passes of an evaluation or replay, only the operations that release gathered units are left.
    active_->finish_step();
    if (in_replay_round()) end_replay_round();
  } catch (...) {  // a destructor calls this function and must not throw, so the next call of the engine rethrows
    failure_ = std::current_exception();
  }
}

void Session::abandon_micro_batch(int64_t step) noexcept {
  if (micro_batch_ >= 0 && step == decider_.step_count()) abandoned_ = true;
}

void Session::abandon() {
  require_nothing_live();
  if (active_->at_start_of_step()) activate(executor_);
  abandoned_ = true;
  in_evaluation_ = false;
}

/// Runs the remaining passes without model code. Other ranks wait for these operations, so even an abandoned step must
/// run them.
void Session::skip_rest_of_passes() {
  active_->run_to_model_code();
  while (!active_->at_end_of_passes()) skip_use();
}

void Session::finish_abandoned_passes() {
  if (options_.update_in_backward) {
    unusable_ = true;
    throw FaultError(
        "a step with EngineOptions::update_in_backward cannot be abandoned, because some units are already updated");
  }
  skip_replay();
  if (!trains()) activate(executor_);
  if (micro_batch_ < 0) begin_step();
  if (has_graph_in_this_step() && executor_.at_start_of_step()) {
    run_abandoned_graph();
  } else {
    skip_rest_of_passes();
  }
  replay_is_valid_ = false;
  compare_replay();
}

StepReport Session::step() {
  require_nothing_live();
  if (abandoned_) finish_abandoned_passes();
  refuse_unfinished_evaluation();
  if (micro_batch_ < 0 && !abandoned_) throw UsageError("step() was called before micro_batch()");
  if (replay_progress_ == ReplayProgress::kReplayed && trains() && executor_.at_end_of_passes())
    throw UsageError(
        "step() was called before next() returned nullopt: with EngineOptions::replay_every, the last call compares "
        "gradients");
  if (!trains() || !executor_.at_end_of_passes()) {
    const Operation& next = next_operation();
    if (trains() && next.verb == Verb::kForward && next.micro_batch > micro_batch_)
      throw UsageError(
          fmt::format("EngineOptions::accumulate is {}, but step() was called before micro-batch {} (counted from 0): "
                      "call micro_batch() and run it first",
                      options_.accumulate, micro_batch_ + 1));
    throw UsageError(fmt::format("step() was called, but the declared order expects {}", next_use_text()));
  }
  try {
    if (digests_.has_found()) wait_until_idle();
    executor_.finish_step(abandoned_);
  } catch (const UsageError&) {
    unusable_ = true;
    throw;
  }
  end_step_of_graph();
  const bool own_not_finite = gradient_detector_.found();
  gradient_detector_.begin_step(!decider_.report().first_not_finite.empty());  // whether to check in the next step
  abandoned_ = false;
  micro_batch_ = -1;
  decider_.set_state_check_seconds(digests_.drain_seconds());
  decider_.set_replay_seconds(std::exchange(replay_seconds_, 0));
  replay_progress_ = ReplayProgress::kNone;
  replay_is_valid_ = true;
  return decider_.end_step(own_not_finite, options_.tell_skipped && world_.rank() == 0);
}

}  // namespace aliquot
