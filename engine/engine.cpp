#include "engine/engine.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/budget.h"
#include "engine/running.h"

namespace aliquot {

Scope::~Scope() {
  if (engine_ != nullptr) engine_->close(unwinding_.now());
}

Pass::~Pass() {
  if (engine_ != nullptr && unwinding_.now()) engine_->abandon_pass(step_);
}

const std::string& Unit::name() const { return engine_.declared_[index_].spec.name; }

Unit& Unit::add(std::string_view name, std::vector<int64_t> shape, PointerSlot value, PointerSlot gradient,
                const ParameterOptions& options) {
  engine_.refuse_if_running("add a parameter");
  engine_.plan_.reset();
  const bool bare = name.starts_with('.');
  std::string full_name = bare ? std::string(name.substr(1)) : fmt::format("{}.{}", this->name(), name);
  auto& declared = engine_.declared_[index_];
  declared.spec.parameters.push_back({{std::move(full_name), std::move(shape), DType::kFloat32, options.trainable},
                                      options.decayed,
                                      options.lr_scale});
  declared.slots.push_back({value, gradient});
  return *this;
}

Unit& Unit::assigns_gradients() {
  engine_.refuse_if_running("change a unit");
  engine_.plan_.reset();
  engine_.declared_[index_].spec.gradients = GradientMode::kAssign;
  return *this;
}

Scope Unit::forward() { return engine_.open({&index_, 1}, Engine::Use::kForward); }
Scope Unit::backward() { return engine_.open({&index_, 1}, Engine::Use::kBackward); }
Scope Unit::evaluate() { return engine_.open({&index_, 1}, Engine::Use::kEvaluate); }
void Unit::pass_over() { engine_.pass_over(std::span<const UnitId>(&index_, 1)); }

Engine::Engine(World& world, const EngineOptions& options)
    : world_(world), options_(options), learning_rate_(aliquot::learning_rate(options.optimizer)) {
  check(options.optimizer, options.moments);
  if (options.update_in_backward && options.clip > 0) {
    throw UsageError("--update-in-backward updates before the norm is known, so it cannot clip; set --clip 0");
  }
  if (options.precision.compute == DType::kFloat16) scaler_ = LossScaler(options.loss_scaling);
}

Engine::~Engine() = default;

std::deque<Unit>& Engine::units() { return units_; }

Unit& Engine::add_unit(std::string name) {
  refuse_if_running("add a unit");
  declared_.emplace_back().spec.name = std::move(name);
  plan_.reset();
  return units_.emplace_back(*this, static_cast<UnitId>(units_.size()));
}

void Engine::declare_order(std::vector<std::vector<UnitId>> uses) {
  refuse_if_running("declare an order");
  uses_ = std::move(uses);
  plan_.reset();
}

void Engine::refuse_if_running(std::string_view what) const {
  if (running_) throw UsageError(fmt::format("it is too late to {}: the engine has been materialized", what));
}

Engine::Running& Engine::running(std::string_view what) const {
  if (!running_) throw UsageError(fmt::format("materialize() the engine before {}", what));
  running_->throw_failure();
  running_->settle_evaluation();
  return *running_;
}

ModelSpec Engine::model(const std::vector<Declared>& declared) const {
  ModelSpec model;
  for (const Declared& unit : declared) model.units.push_back(unit.spec);
  model.uses = uses_;
  if (uses_.empty()) {
    for (const Unit& unit : units_) model.uses.push_back({unit.index()});
  }
  return model;
}

Policy Engine::policy() const {
  return {.zero_stage = options_.zero_stage,
          .replica_count = options_.replicas,
          .precision = options_.precision,
          .micro_batch_count = options_.accumulate,
          .accumulate_into = options_.accumulate_into,
          .prefetch = options_.prefetch,
          .keep_gathered = options_.keep_gathered,
          .gather = options_.gather,
          .offload_state = options_.offload_state,
          .offload_parameters = options_.offload_parameters,
          .update_in_backward = options_.update_in_backward,
          .reproducible = options_.reproducible,
          .state_bytes_per_block = state_bytes(options_.optimizer, options_.moments, kBlockElements)};
}

Plan Engine::make_plan(const std::vector<Declared>& declared) const {
  if (options_.memory_budget_bytes == 0) return aliquot::plan(model(declared), policy(), world_.topology());
  return plan_within(options_.memory_budget_bytes, model(declared), policy(), world_.topology(), options_.cost);
}

const Plan& Engine::plan() {
  if (!plan_) plan_ = std::make_unique<Plan>(make_plan(declared_));
  return *plan_;
}

void Engine::compute_on(std::unique_ptr<Stream> stream) {
  refuse_if_running("compute on another stream");
  if (stream != nullptr && stream->lane() != Lane::kCompute)
    throw UsageError("the model's stream is to be of the compute lane");
  compute_stream_ = std::move(stream);
}

Stream& Engine::compute_stream() { return running("asking for its stream").executor.stream(Lane::kCompute); }

void Engine::record_timelines() {
  Running& run = running("recording");
  if (run.recorder) return;
  run.recorder.emplace(*plan_);
  run.executor.set_recorder(&*run.recorder);
  run.recorded_from = run.executor.step();
}

Timeline Engine::timeline(double* began) {
  Running& run = running("asking for a timeline");
  run.require_between_steps("timeline()");
  const int64_t last = run.executor.step() - 1;
  if (!run.recorder || last < run.recorded_from + 2) return {};
  run.come_to_rest();
  if (began != nullptr) *began = run.recorder->began(last);
  return run.recorder->timeline(last);
}

std::string_view Engine::name(Use use) {
  return use == Use::kForward ? "forward" : use == Use::kBackward ? "backward" : "evaluate";
}

std::string Engine::unit_names(std::span<const UnitId> units) const {
  std::string names;
  for (const UnitId unit : units) names += (names.empty() ? "" : " with ") + plan_->model.units[unit].name;
  return names;
}

std::string Engine::use_text(const Operation& operation) const {
  if (operation.verb != Verb::kForward && operation.verb != Verb::kBackward) return "step()";
  return fmt::format("{} of {}", aliquot::name(operation.verb), unit_names(plan_->model.uses[operation.place]));
}

Pass Engine::micro_batch() {
  Running& run = running("the first micro-batch");
  run.require_nothing_live();
  if (run.abandoned) throw UsageError("an exception left this step: call step(), which skips it on all ranks, first");
  if (run.evaluates() && !run.evaluator.at_start_of_step()) throw UsageError("an evaluation is not finished");
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
  for (const Unit* unit : units) ids.push_back(unit->index());
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
  const bool in_order = executor.at_model_code() && (next.verb == Verb::kBackward) == (use == Use::kBackward) &&
                        (use == Use::kEvaluate || next.micro_batch == run.micro_batch) &&
                        std::ranges::is_permutation(plan_->model.uses[next.place], units);
  if (!in_order) {
    throw UsageError(fmt::format("{} of {} was opened where the declared order has {}", name(use), unit_names(units),
                                 use_text(next)));
  }
  executor.open();
  run.live.assign(units.begin(), units.end());
  const StepMemory& memory = use == Use::kEvaluate ? run.evaluation_memory : run.memory;
  for (const UnitId unit : units) run.bindings.open(unit, use == Use::kBackward, memory);
  return Scope(this);
}

/// A pass that begins with the wrong unit is refused before anything is gathered for it.
void Engine::begin_evaluation(std::span<const UnitId> units) {
  Running& run = *running_;
  const bool begins = !run.evaluates() || run.evaluator.at_start_of_step();
  if (begins && run.live.empty() && !std::ranges::is_permutation(plan_->model.uses.front(), units)) {
    throw UsageError(fmt::format("evaluate of {} was opened where the declared order has forward of {}",
                                 unit_names(units), unit_names(plan_->model.uses.front())));
  }
  if (begins) run.require_between_steps("an evaluation");
  run.turn_to(run.evaluator);
  if (begins) run.evaluator.show_step(step_count_);
  run.evaluator.run_to_model_code();
}

void Engine::pass_over(std::span<const UnitId> units) {
  Running& run = running("passing over a unit");
  const Operation& next = run.active->operation(run.active->next());
  const bool in_order = run.live.empty() && run.micro_batch >= 0 && run.active->at_model_code() &&
                        next.micro_batch == run.micro_batch &&
                        std::ranges::is_permutation(plan_->model.uses[next.place], units);
  if (!in_order) {
    throw UsageError(
        fmt::format("{} was passed over where the declared order has {}", unit_names(units), use_text(next)));
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
  if (run.evaluates() || !run.executor.at_end_of_passes()) {
    throw UsageError(fmt::format("step() was called where the declared order has {}",
                                 use_text(run.executor.operation(run.executor.next()))));
  }
  run.executor.finish_step(run.abandoned);
  run.abandoned = false;
  run.micro_batch = -1;
  ++step_count_;
  if (!run.report.skipped) ++update_count_;
  if (run.report.abandoned_by < 0) scaler_.step_done(run.report.skipped);
  return run.report;
}

}  // namespace aliquot
