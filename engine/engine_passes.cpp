// A step as the model goes through it: what may be opened when, and what closing it sets off.
#include <algorithm>
#include <fmt/format.h>

#include "engine/engine.h"
#include "engine/running.h"
#include "kernels/system/tell.h"

namespace aliquot {

Scope::~Scope() {
  if (engine_ != nullptr) engine_->close(unwinding_.now());
}

UseMemory Scope::memory() const { return engine_->use_memory(); }

Pass::~Pass() {
  if (engine_ != nullptr && unwinding_.now()) engine_->abandon_pass(step_);
}

Scope Unit::forward() { return engine_.open({&index_, 1}, Engine::Use::kForward); }
Scope Unit::backward() { return engine_.open({&index_, 1}, Engine::Use::kBackward); }
Scope Unit::evaluate() { return engine_.open({&index_, 1}, Engine::Use::kEvaluate); }
void Unit::pass_over() { engine_.pass_over(std::span<const UnitId>(&index_, 1)); }

std::string_view Engine::name(Use use) {
  return use == Use::kForward ? "forward" : use == Use::kBackward ? "backward" : "evaluate";
}

std::string Engine::unit_names(std::span<const UnitId> units) const {
  std::string names;
  for (const UnitId unit : units) {
    if (unit < 0 || unit >= static_cast<UnitId>(units_.size()))
      throw UsageError(fmt::format("there is no unit {}: there are {}", unit, units_.size()));
    names += (names.empty() ? "" : " with ") + plan_->model.units[unit].name;
  }
  return names;
}

std::string Engine::use_text(const Operation& operation) const {
  if (!is_model_code(operation.verb)) return "step()";
  const bool forward = operation.verb == Verb::kForward;  // a recompute is the beginning of a backward, to the model
  const Use use = !forward ? Use::kBackward : running_->evaluates() ? Use::kEvaluate : Use::kForward;
  return fmt::format("{} of {}", name(use), unit_names(plan_->model.uses[operation.place]));
}

/// Nothing else begins before a pass of evaluation has ended.
void Engine::refuse_unfinished_evaluation() const {
  const Executor& evaluator = running_->evaluator;
  if (!running_->evaluates() || evaluator.at_start_of_step()) return;
  throw UsageError(fmt::format("an evaluation is not finished: {} is still to come",
                               use_text(evaluator.operation(evaluator.next()))));
}

Pass Engine::micro_batch() {
  Running& run = running("the first micro-batch");
  run.require_nothing_live();
  if (run.abandoned) throw UsageError("an exception left this step: call step(), which skips it on all ranks, first");
  refuse_unfinished_evaluation();
  if (run.micro_batch + 1 == options_.accumulate) {
    throw UsageError(fmt::format("this step has had its {} micro-batches; call step()", options_.accumulate));
  }
  Executor& executor = run.turn_to(run.executor);
  if (run.micro_batch < 0) executor.show_step(step_count_ + 1);
  executor.run_to_model_code();
  const Operation& next = executor.operation(executor.next());
  if (next.micro_batch != run.micro_batch + 1 || next.verb != Verb::kForward || next.place != 0) {
    throw UsageError(
        fmt::format("micro-batch {} is not finished: {} is still to come", run.micro_batch, use_text(next)));
  }
  ++run.micro_batch;
  return Pass(this, step_count_);
}

namespace {

std::vector<UnitId> ids_of(std::initializer_list<const Unit*> units) {
  std::vector<UnitId> ids;
  for (const Unit* unit : units) {
    if (unit == nullptr)
      throw UsageError("a unit is given as a null pointer: expected the address of one of engine.units()");
    ids.push_back(unit->index());
  }
  return ids;
}

}  // namespace

Scope Engine::forward(std::initializer_list<const Unit*> units) { return open(ids_of(units), Use::kForward); }
Scope Engine::backward(std::initializer_list<const Unit*> units) { return open(ids_of(units), Use::kBackward); }
Scope Engine::evaluate(std::initializer_list<const Unit*> units) { return open(ids_of(units), Use::kEvaluate); }
void Engine::pass_over(std::initializer_list<const Unit*> units) { pass_over(std::span<const UnitId>(ids_of(units))); }

Scope Engine::open(std::span<const UnitId> units, Use use) {
  Running& run = running("opening a unit");
  if (run.abandoned) throw UsageError("an exception left this step: call step(), which skips it on all ranks, first");
  if (use == Use::kEvaluate) {
    if (run.micro_batch >= 0) throw UsageError("evaluate between steps: this one is not finished");
    begin_evaluation(units);
  } else if (run.micro_batch < 0) {
    throw UsageError("open a micro-batch before a unit");
  }
  if (!run.live.empty()) {
    throw UsageError(fmt::format(
        "unit {} is still live: close its scope before another is opened; units used together are opened by one scope",
        plan_->model.units[run.live.front()].name));
  }
  Executor& executor = *run.active;
  const Operation& next = executor.operation(executor.next());
  const bool in_order = executor.at_model_code() && (next.verb != Verb::kForward) == (use == Use::kBackward) &&
                        (use == Use::kEvaluate || next.micro_batch == run.micro_batch) &&
                        std::ranges::is_permutation(plan_->model.uses[next.place], units);
  if (!in_order) {
    throw UsageError(fmt::format("{} of {} was opened where the declared order has {}", name(use), unit_names(units),
                                 use_text(next)));
  }
  if (next.verb == Verb::kRecompute) recompute(units);
  make_live(units, use);
  return Scope(this);
}

void Engine::make_live(std::span<const UnitId> units, Use use) {
  Running& run = *running_;
  const OperationId next = run.active->next();
  const int32_t place = run.active->operation(next).place;
  ModelAddresses& addresses = run.active_addresses();
  run.active->open();
  addresses.open(run.active->stream(Lane::kCompute), next);
  run.live.assign(units.begin(), units.end());
  for (const UnitId unit : units) run.bindings.open(unit, use == Use::kBackward, addresses);
  const bool recomputed = use != Use::kEvaluate && run.recomputed[place];
  run.use_memory = addresses.of_use(place, use == Use::kBackward);
  run.use_memory.recomputed = recomputed;
}

/// To the model it is a forward; to all else an operation of its own, before the backward that asked for it.
void Engine::recompute(std::span<const UnitId> units) {
  Running& run = *running_;
  make_live(units, Use::kForward);
  try {
    recompute_(run.use_memory);
  } catch (...) {
    close(true);
    throw;
  }
  close(false);
  run.throw_failure();
}

UseMemory Engine::use_memory() const { return running_->use_memory; }

/// A pass that begins with the wrong unit is refused before anything is gathered for it.
void Engine::begin_evaluation(std::span<const UnitId> units) {
  Running& run = *running_;
  const bool begins = !run.evaluates() || run.evaluator.at_start_of_step();
  if (begins && run.live.empty() && !std::ranges::is_permutation(plan_->model.uses.front(), units)) {
    throw UsageError(fmt::format("evaluate of {} was opened where the declared order has evaluate of {}",
                                 unit_names(units), unit_names(plan_->model.uses.front())));
  }
  if (begins) run.require_between_steps("an evaluation");
  run.turn_to(run.evaluator);
  if (begins) run.evaluator.show_step(step_count_);
  run.evaluator.run_to_model_code();
}

void Engine::pass_over(std::span<const UnitId> units) {
  Running& run = running("passing over a unit");
  run.require_nothing_live();
  if (run.micro_batch < 0) throw UsageError("open a micro-batch before a unit is passed over");
  const Operation& next = run.active->operation(run.active->next());
  const bool in_order = run.active->at_model_code() && next.micro_batch == run.micro_batch &&
                        std::ranges::is_permutation(plan_->model.uses[next.place], units);
  if (!in_order) {
    throw UsageError(
        fmt::format("{} was passed over where the declared order has {}", unit_names(units), use_text(next)));
  }
  if (next.verb == Verb::kRecompute) {
    run.active->open(true);
    run.active->close();
  }
  run.active->open(true);
  run.active->close();
}

void Engine::close(bool by_exception) noexcept {
  Running& run = *running_;
  for (const UnitId unit : run.live) run.bindings.close(unit);
  run.live.clear();
  if (by_exception) run.abandoned = true;
  try {
    run.active_addresses().close(run.active->stream(Lane::kCompute), run.active->next());
    run.active->close();
    // The last of an evaluation's operations let go of what was whole.
    if (run.evaluates() && run.active->at_end_of_passes()) run.active->finish_step();
  } catch (...) {  // from a destructor: thrown by the engine's next call
    run.failure = std::current_exception();
  }
}

void Engine::abandon_pass(int64_t step) noexcept {
  if (running_ && running_->micro_batch >= 0 && step == step_count_) running_->abandoned = true;
}

void Engine::abandon() {
  Running& run = running("abandoning a step");
  run.require_nothing_live();
  if (run.active->at_start_of_step()) run.turn_to(run.executor);
  run.abandoned = true;
}

StepReport Engine::step() {
  Running& run = running("step()");
  run.require_nothing_live();
  if (run.abandoned) {
    if (options_.update_in_backward) {
      run.lost = true;
      throw FaultError("a step that updates in backward cannot be abandoned: parts of it have been taken already");
    }
    if (run.micro_batch < 0) run.executor.show_step(step_count_ + 1);
    run.finish_passes();
  }
  refuse_unfinished_evaluation();
  if (run.micro_batch < 0 && !run.abandoned) throw UsageError("step() was called before a micro-batch was begun");
  if (run.evaluates() || !run.executor.at_end_of_passes()) {
    throw UsageError(fmt::format("step() was called where the declared order has {}",
                                 use_text(run.executor.operation(run.executor.next()))));
  }
  run.executor.finish_step(run.abandoned);
  run.watch.begin_step(!run.report.first_not_finite.empty());  // the next one
  run.abandoned = false;
  run.micro_batch = -1;
  ++step_count_;
  if (!run.report.skipped) ++update_count_;
  if (run.report.abandoned_by < 0) scaler_.step_done(run.report.skipped);
  note_skipped(run.report);
  return run.report;
}

/// Tells the log sink of a step that changed nothing, or took what is not finite. Throws after max_skipped steps in a row.
void Engine::note_skipped(const StepReport& report) {
  skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  const bool finite = report.first_not_finite.empty();
  if (finite && !report.skipped) return;
  const std::string why = finite ? fmt::format("rank {} abandoned it", report.abandoned_by)
                                 : fmt::format("the gradient of {} is not finite", report.first_not_finite);
  if (options_.tell_skipped && world_.rank() == 0)
    tell("step {} was {}: {}", report.step, report.skipped ? "skipped" : "not skipped, as updates came in backward",
         why);
  if (options_.max_skipped == 0 || skipped_in_a_row_ < options_.max_skipped) return;
  const std::string sentence =
      fmt::format("step {} was skipped: {}; that makes {} in a row (EngineOptions::max_skipped)", report.step, why,
                  std::exchange(skipped_in_a_row_, 0));
  if (finite) throw FaultError(sentence);
  throw NotFiniteError(sentence);
}

}  // namespace aliquot
