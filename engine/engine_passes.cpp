// The functions of Engine for training steps and evaluations. They forward calls to the session.
#include <fmt/format.h>

#include "engine/engine.h"
#include "engine/session.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::vector<UnitId> ids_of(std::initializer_list<const Unit*> units) {
  std::vector<UnitId> ids;
  for (const Unit* unit : units) {
    if (unit == nullptr) throw UsageError("a unit pointer is null: expected the address of one of engine.units()");
    ids.push_back(unit->index());
  }
  return ids;
}

}  // namespace

Scope::~Scope() {
  if (engine_ != nullptr) engine_->session_->close(unwinding_.now());
}

UseMemory Scope::memory() const { return engine_->session_->use_memory(); }

Pass::~Pass() {
  if (engine_ != nullptr && unwinding_.now() && engine_->session_) engine_->session_->abandon_micro_batch(step_);
}

Scope Unit::forward() { return engine_.open({&index_, 1}, UseKind::kForward); }
Scope Unit::backward() { return engine_.open({&index_, 1}, UseKind::kBackward); }
Scope Unit::evaluate() { return engine_.open({&index_, 1}, UseKind::kEvaluate); }
void Unit::skip() { engine_.skip(std::span<const UnitId>(&index_, 1)); }

Scope Engine::forward(std::initializer_list<const Unit*> units) { return open(ids_of(units), UseKind::kForward); }
Scope Engine::backward(std::initializer_list<const Unit*> units) { return open(ids_of(units), UseKind::kBackward); }
Scope Engine::evaluate(std::initializer_list<const Unit*> units) { return open(ids_of(units), UseKind::kEvaluate); }
void Engine::skip(std::initializer_list<const Unit*> units) { skip(std::span<const UnitId>(ids_of(units))); }

Pass Engine::micro_batch() {
  Session& session = this->session("micro_batch()");
  refuse_with_replays("micro_batch()");
  session.begin_micro_batch();
  return Pass(this, step_count());
}

/// Only next() hands out the uses of a replay.
void Engine::refuse_with_replays(std::string_view call) const {
  if (options_.replay_every != 0)
    throw UsageError(fmt::format(
        "{} cannot be used with EngineOptions::replay_every: call next(), and use the samples of Work::data_coordinate",
        call));
}

Scope Engine::open(std::span<const UnitId> units, UseKind kind) {
  const std::string_view call = kind == UseKind::kForward    ? "forward()"
                                : kind == UseKind::kBackward ? "backward()"
                                                             : "evaluate()";
  Session& session = this->session(call);
  if (kind != UseKind::kEvaluate) refuse_with_replays(call);
  session.open(units, kind);
  return Scope(this);
}

std::optional<Work> Engine::next() {
  Session& open = session("next()");
  if (!open.open_next()) return std::nullopt;
  const Operation& operation = open.open_operation();
  return Work{open.open_kind(),      operation.operand,
              operation.micro_batch, (*stages_)[own_stage()].model.uses[operation.operand],
              Scope(this),           open.data_coordinate(),
              open.is_replay()};
}

void Engine::run_passes(const std::function<void()>& passes) { session("run_passes()").run_passes(passes); }

bool Engine::uses_graph() const { return session("uses_graph()").captures_passes(); }
int Engine::data_coordinate() const { return session("data_coordinate()").data_coordinate(); }

void Engine::compare_loss(double loss, bool replayed) { session("compare_loss()").compare_loss(loss, replayed); }

std::optional<Work> Engine::next_evaluation() {
  Session& open = session("next_evaluation()");
  if (!open.open_next_evaluation()) return std::nullopt;
  const Operation& operation = open.open_operation();
  return Work{UseKind::kEvaluate,    operation.operand,
              operation.micro_batch, (*stages_)[own_stage()].model.uses[operation.operand],
              Scope(this),           open.data_coordinate()};
}

void Engine::sum_losses(std::span<double> values) { session("sum_losses()").sum_losses(values); }

void Engine::skip(std::span<const UnitId> units) {
  Session& session = this->session("skip()");
  refuse_with_replays("skip()");
  session.skip(units);
}

void Unit::pass_over() { skip(); }
void Engine::pass_over(std::initializer_list<const Unit*> units) { skip(units); }
void Engine::pass_over(std::span<const UnitId> units) { skip(units); }
void Engine::abandon() { session("abandon()").abandon(); }
StepReport Engine::step() { return session("step()").step(); }

Stream& Engine::compute_stream() { return session("compute_stream()").compute_stream(); }
void Engine::record_timelines() { session("record_timelines()").record_timelines(); }
Timeline Engine::timeline(double* began) { return session("timeline()").timeline(began); }

}  // namespace aliquot
