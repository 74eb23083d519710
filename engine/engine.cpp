#include "engine/engine.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/running.h"
#include "optim/clip.h"

namespace aliquot {

Scope::~Scope() {
  if (engine_ != nullptr) engine_->close();
}

const std::string& Unit::name() const { return engine_.declared_[index_].spec.name; }

Unit& Unit::add(std::string_view name, std::vector<int64_t> shape, float** value, float** gradient,
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

Scope Unit::forward() { return engine_.open({&index_, 1}, false); }
Scope Unit::backward() { return engine_.open({&index_, 1}, true); }

Engine::Engine(World& world, const EngineOptions& options)
    : world_(world), options_(options), learning_rate_(aliquot::learning_rate(options.optimizer)) {
  check(options.optimizer);
  if (world.device().kind() != DeviceKind::kHost) {
    throw UnavailableError("the engine computes on hosts in this version; choose --device host");
  }
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

const Plan& Engine::plan() {
  if (plan_) return *plan_;
  ModelSpec model;
  for (const Declared& declared : declared_) model.units.push_back(declared.spec);
  model.uses = uses_;
  if (uses_.empty()) {
    for (const Unit& unit : units_) model.uses.push_back({unit.index()});
  }
  const Policy policy{.zero_stage = options_.zero_stage,
                      .micro_batch_count = options_.accumulate,
                      .accumulate_into = options_.accumulate_into,
                      .prefetch = options_.prefetch,
                      .keep_gathered = options_.keep_gathered,
                      .gather = options_.gather,
                      .state_bytes_per_parameter = state_bytes(options_.optimizer, DType::kFloat32, 1)};
  plan_ = std::make_unique<Plan>(aliquot::plan(model, policy, world_.topology()));
  return *plan_;
}

void Engine::micro_batch() {
  if (!running_) throw UsageError("materialize() the engine before the first micro-batch");
  Running& run = *running_;
  if (run.failure) std::rethrow_exception(std::exchange(run.failure, nullptr));
  if (run.micro_batch + 1 == options_.accumulate) {
    throw UsageError(fmt::format("this step has had its {} micro-batches; call step()", options_.accumulate));
  }
  run.executor.run_to_model_code();
  const Operation& next = run.executor.operation(run.executor.next());
  if (next.micro_batch != run.micro_batch + 1 || next.verb != Verb::kForward || next.place != 0) {
    throw UsageError(
        fmt::format("micro-batch {} is not finished: {} is still to come", run.micro_batch, use_text(next)));
  }
  ++run.micro_batch;
}

std::string Engine::use_text(const Operation& operation) const {
  if (operation.verb != Verb::kForward && operation.verb != Verb::kBackward) return "step()";
  std::string names;
  for (const UnitId unit : plan_->model.uses[operation.place])
    names += (names.empty() ? "" : " with ") + plan_->model.units[unit].name;
  return fmt::format("{} of {}", aliquot::name(operation.verb), names);
}

Scope Engine::forward(std::initializer_list<const Unit*> units) {
  std::vector<UnitId> ids;
  for (const Unit* unit : units) ids.push_back(unit->index());
  return open(ids, false);
}

Scope Engine::backward(std::initializer_list<const Unit*> units) {
  std::vector<UnitId> ids;
  for (const Unit* unit : units) ids.push_back(unit->index());
  return open(ids, true);
}

Scope Engine::open(std::span<const UnitId> units, bool backward) {
  if (!running_ || running_->micro_batch < 0) throw UsageError("open a micro-batch before a unit");
  Running& run = *running_;
  if (run.failure) std::rethrow_exception(std::exchange(run.failure, nullptr));
  if (!run.live.empty()) {
    throw UsageError(fmt::format(
        "unit {} is still live: close its scope before another is opened; units used together are opened by one scope",
        plan_->model.units[run.live.front()].name));
  }
  const Operation& next = run.executor.operation(run.executor.next());
  const bool is_backward = next.verb == Verb::kBackward;
  const bool in_order = run.executor.at_model_code() && next.micro_batch == run.micro_batch &&
                        is_backward == backward && std::ranges::is_permutation(plan_->model.uses[next.place], units);
  if (!in_order) {
    std::string opened;
    for (const UnitId unit : units) opened += (opened.empty() ? "" : " with ") + plan_->model.units[unit].name;
    throw UsageError(fmt::format("{} of {} was opened where the declared order has {}",
                                 backward ? "backward" : "forward", opened, use_text(next)));
  }
  run.executor.open();
  run.live.assign(units.begin(), units.end());
  for (const UnitId unit : units) run.bindings.open(unit, backward);
  return Scope(this);
}

void Engine::close() {
  Running& run = *running_;
  for (const UnitId unit : run.live) run.bindings.close(unit);
  run.live.clear();
  try {
    run.executor.close();
  } catch (...) {  // from a destructor: thrown by the engine's next call
    run.failure = std::current_exception();
  }
}

UpdateStep Engine::Running::decide(const NormResult& norm) {
  const double parts = static_cast<double>(engine.options_.accumulate) * engine.world_.rank_count();
  report = {.step = engine.step_count_ + 1,
            .gradient_norm = gradient_norm(norm.sum_of_squares, parts),
            .learning_rate = engine.learning_rate_,
            .skipped = !norm.first_not_finite.empty(),
            .first_not_finite = norm.first_not_finite};
  const float factor = gradient_factor(clip_factor(report.gradient_norm, engine.options_.clip), parts);
  const int64_t update = engine.update_count_ + 1;
  return {.rule = rule_at(engine.options_.optimizer, engine.learning_rate_, update),
          .gradient_factor = factor,
          .seed = engine.options_.seed,
          .step = update};
}

StepReport Engine::step() {
  if (!running_) throw UsageError("materialize() the engine before step()");
  Running& run = *running_;
  if (run.failure) std::rethrow_exception(std::exchange(run.failure, nullptr));
  if (!run.executor.at_end_of_passes()) {
    throw UsageError(fmt::format("step() was called where the declared order has {}",
                                 use_text(run.executor.operation(run.executor.next()))));
  }
  run.executor.finish_step();
  run.micro_batch = -1;
  ++step_count_;
  if (!run.report.skipped) ++update_count_;
  return run.report;
}

}  // namespace aliquot
