#include "engine/running.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "engine/plan/accesses.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "sharding/comm/exchange_purpose.h"

namespace aliquot {

Engine::Running::Running(Engine& of, const Plan& evaluation_plan, std::vector<std::vector<PointerSlots>> slots)
    : engine(of),
      groups(of.world_, of.plan_->policy.replica_count),
      homes(*of.plan_, of.world_, {of.options_.offload_state_to, of.options_.offload_parameters_to}),
      view(of.world_.device(), homes),
      evaluation(evaluation_plan),
      arena(*of.plan_, evaluation, groups),
      memory({*of.plan_, arena, homes, of.world_.device().ledger(), groups.replica().rank()}),
      evaluation_memory({evaluation, arena, homes, of.world_.device().ledger(), groups.replica().rank()}, false),
      addresses(*of.plan_, memory, arena),
      evaluation_addresses(evaluation, evaluation_memory, arena),
      weights(*of.plan_, memory, view, groups.replica().rank()),
      updater({*of.plan_, memory, weights, view, groups.replica().rank()}, of.options_.optimizer, of.options_.moments),
      bindings(*of.plan_, std::move(slots)),
      faults(make_fault_injector(of.world_, {*of.plan_, memory, weights, view, of.world_.device()})),
      watch(*of.plan_, memory, of.world_.device()),
      executor({*of.plan_, groups, lanes, memory, homes, updater, *this, of.options_.optimizer}),
      evaluator({evaluation, groups, lanes, evaluation_memory, homes, updater, *this, of.options_.optimizer}),
      recomputed(recomputed_uses(of.plan_->model, of.plan_->policy)) {
  for (const Plan* plan : {static_cast<const Plan*>(of.plan_.get()), static_cast<const Plan*>(&evaluation)}) {
    for (const Operation& operation : plan->schedule.operations) make_lane(operation.lane);
  }
  executor.set_faults(faults.get());
  executor.set_watch(&watch);
}

/// A lane is a thread, on a host: none for what nothing runs on.
void Engine::Running::make_lane(Lane lane) {
  auto& stream = lanes[static_cast<std::size_t>(lane)];
  if (stream) return;
  const bool own = lane == Lane::kCompute && engine.compute_stream_ != nullptr;
  stream = own ? std::move(engine.compute_stream_) : engine.world_.device().make_stream(lane);
}

Engine::Running::~Running() {
  World::Turns& turns = engine.world_.turns();
  if (turns.holder != &executor && turns.holder != &evaluator) return;
  turns = {.base = std::max(turns.base, active->progress_end())};
}

UpdateSteps Engine::Running::update_steps(double factor) const {
  const int64_t update = engine.update_count_ + 1;
  const Optimizer& optimizer = engine.options_.optimizer;
  const UpdateStep elements = {.rule = rule_at(optimizer, engine.learning_rate_, update),
                               .gradient_factor = static_cast<float>(factor),
                               .seed = engine.options_.seed,
                               .step = update};
  UpdateSteps steps = {elements, elements, elements};
  if (const auto* muon = std::get_if<Muon>(&optimizer)) {
    steps.blend.rule = muon_blend_rule(*muon);
    steps.apply.rule = muon_apply_rule(*muon, engine.learning_rate_);
    if (std::isfinite(steps.blend.gradient_factor)) steps.apply.gradient_factor = 1.0f;
  }
  return steps;
}

UpdateSteps Engine::Running::decide(const NormResult& norm) {
  // Gradients are sums over ranks and micro-batches, multiplied by the loss scale.
  const double parts =
      static_cast<double>(engine.options_.accumulate) * engine.world_.rank_count() * engine.scaler_.scale();
  const bool finite = norm.first_not_finite.empty();
  report = {.step = engine.step_count_ + 1,
            .gradient_norm = gradient_norm(norm.sum_of_squares, parts),
            .learning_rate = engine.learning_rate_,
            .loss_scale = engine.scaler_.scale(),
            .skipped = (!finite || norm.abandoned_by >= 0) && !engine.options_.update_in_backward,
            .first_not_finite = norm.first_not_finite,
            .abandoned_by = norm.abandoned_by,
            .own_not_finite = watch.found()};
  const double factor =
      norm.abandoned_by >= 0
          ? std::numeric_limits<double>::quiet_NaN()
          : static_cast<double>(gradient_factor(clip_factor(report.gradient_norm, engine.options_.clip), parts));
  UpdateSteps steps = update_steps(factor);
  LossScaler next = engine.scaler_;
  next.step_done(!finite);
  // Gradients of a step that is skipped may have been of any size; of another scale they are other numbers.
  steps.forgets_carried = report.skipped || next.scale() != engine.scaler_.scale();
  return steps;
}

void Engine::Running::forget_carried() const {
  const Plan& plan = *engine.plan_;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (std::byte* carried = memory.peek(Role::kCarried, f); carried != nullptr)
      view.clear(carried, needed_bytes(plan, Role::kCarried, f));
  }
}

UpdateSteps Engine::Running::decide_ahead() {
  return update_steps(static_cast<double>(
      gradient_factor(1.0, static_cast<double>(engine.options_.accumulate) * engine.world_.rank_count())));
}

Executor& Engine::Running::turn_to(Executor& next) {
  World::Turns& turns = engine.world_.turns();
  if (turns.holder == &next) return next;
  if (turns.finish) {
    const ExchangePurpose purpose(&next == &evaluator ? "begin an evaluation" : "begin a step");
    turns.base = std::max(turns.base, turns.finish());
    engine.world_.communicator().gather_objects("turn");
  }
  next.start_after_meeting(turns.base);
  turns.holder = &next;
  turns.finish = [this, &next] {
    if (!next.at_start_of_step()) throw UsageError("another engine of this world is in the middle of a step");
    come_to_rest();
    return next.progress_end();
  };
  active = &next;
  return next;
}

void Engine::Running::require_nothing_live() const {
  if (live.empty()) return;
  throw UsageError(
      fmt::format("unit {} is still live: close its scope first", engine.plan_->model.units[live.front()].name));
}

void Engine::Running::require_between_steps(std::string_view what) const {
  require_nothing_live();
  if (micro_batch < 0 && !abandoned && active->at_start_of_step()) return;
  throw UsageError(fmt::format("{} is for between steps: this one is not finished", what));
}

void Engine::Running::throw_failure() {
  if (lost) throw FaultError("this engine's ranks have lost one another: make a new one");
  lost = failure != nullptr;
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

void Engine::Running::finish_passes() {
  active->run_to_model_code();
  while (!active->at_end_of_passes()) {
    active->open(true);
    active->close();
  }
}

void Engine::Running::settle_evaluation() {
  if (!evaluates() || !abandoned) return;
  if (!evaluator.at_start_of_step()) {
    finish_passes();
    evaluator.finish_step();
  }
  abandoned = false;
}

const PieceAccess* Engine::Running::raw_access(const std::byte* at, DType dtype) const {
  if (view.direct(at)) return nullptr;
  const int64_t bytes = element_bytes(dtype);
  return bytes == 1 ? &access_1 : bytes == 2 ? &access_2 : &access_4;
}

}  // namespace aliquot
