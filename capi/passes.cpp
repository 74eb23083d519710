// Functions that run training steps: micro-batches, scopes, and the step itself.
#include <fmt/format.h>
#include <optional>
#include <vector>

#include "capi/handles.h"
#include "capi/status.h"

using aliquot::UsageError;
using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

namespace {

std::vector<aliquot::UnitId> ids_of(aliquot_engine& handle, int unit_count, const int* units) {
  if (unit_count < 1) throw UsageError(fmt::format("unit_count is {}: expected at least 1", unit_count));
  std::vector<aliquot::UnitId> ids;
  for (int i = 0; i < unit_count; ++i) ids.push_back(handle.unit((&require_not_null(units, "units"))[i]).index());
  return ids;
}

aliquot::Scope open(aliquot_engine& handle, int use, int unit_count, const int* units) {
  const std::vector<aliquot::UnitId> ids = ids_of(handle, unit_count, units);
  switch (use) {
    case ALIQUOT_FORWARD: return handle.engine.forward(ids);
    case ALIQUOT_BACKWARD: return handle.engine.backward(ids);
    case ALIQUOT_EVALUATE: return handle.engine.evaluate(ids);
    case ALIQUOT_BACKWARD_INPUT:
    case ALIQUOT_BACKWARD_WEIGHTS:
      throw UsageError("aliquot_open() cannot open a part of a backward: use aliquot_next(), or ALIQUOT_BACKWARD");
    default:
      throw UsageError(fmt::format(
          "invalid kind of use {}: expected ALIQUOT_FORWARD (0), ALIQUOT_BACKWARD (1) or ALIQUOT_EVALUATE (2)", use));
  }
}

int kind_of(aliquot::UseKind kind) {
  switch (kind) {
    case aliquot::UseKind::kForward: return ALIQUOT_FORWARD;
    case aliquot::UseKind::kBackward: return ALIQUOT_BACKWARD;
    case aliquot::UseKind::kBackwardInput: return ALIQUOT_BACKWARD_INPUT;
    case aliquot::UseKind::kBackwardWeights: return ALIQUOT_BACKWARD_WEIGHTS;
    case aliquot::UseKind::kEvaluate: break;
  }
  return ALIQUOT_EVALUATE;
}

/// Opens the use that `next` returns, if any, and keeps its scope open until aliquot_close().
void open_work(aliquot_engine& handle, std::optional<aliquot::Work> (aliquot::Engine::*next)(), aliquot_work* to) {
  aliquot_work& work = require_not_null(to, "work");
  std::optional<aliquot::Work> opened = (handle.engine.*next)();  // throws if a scope is open already
  work = {};
  work.kind = ALIQUOT_NO_WORK;
  if (!opened) return;
  work = {kind_of(opened->kind),   opened->use,
          opened->micro_batch,     static_cast<int>(opened->units.size()),
          opened->units.data(),    aliquot::capi::use_memory(opened->memory()),
          opened->data_coordinate, opened->replayed ? 1 : 0};
  handle.open_scope.emplace(std::move(opened->scope));
}

}  // namespace

int aliquot_run_passes(aliquot_engine* engine, aliquot_passes passes, void* context) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    const auto callback = &require_not_null(passes, "passes");
    handle.engine.run_passes([&] {
      const int status = callback(context);
      if (status == ALIQUOT_DONE) return;
      handle.open_scope.reset();
      handle.engine.abandon();
      aliquot::capi::check_callback_status(status, "the passes callback");
    });
  });
}

int aliquot_micro_batch(aliquot_engine* engine) {
  // The returned Pass only detects exceptions, and C code throws none, so it is discarded.
  return catch_as_status([&] { require_not_null(engine, "engine").engine.micro_batch(); });
}

int aliquot_open(aliquot_engine* engine, int use, int unit_count, const int* units) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    aliquot::Scope scope = open(handle, use, unit_count, units);  // throws if a scope is open already
    handle.open_scope.emplace(std::move(scope));
  });
}

int aliquot_forward(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_FORWARD, 1, &unit); }
int aliquot_backward(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_BACKWARD, 1, &unit); }
int aliquot_evaluate(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_EVALUATE, 1, &unit); }

int aliquot_close(aliquot_engine* engine) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    if (!handle.open_scope) throw UsageError("aliquot_close() was called while no unit was open: open a unit first");
    handle.open_scope.reset();
  });
}

int aliquot_memory_of_use(aliquot_engine* engine, aliquot_use_memory* memory) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    if (!handle.open_scope)
      throw UsageError("aliquot_memory_of_use() was called while no unit was open: open a unit first");
    require_not_null(memory, "memory") = aliquot::capi::use_memory(handle.open_scope->memory());
  });
}

int aliquot_run_collective(aliquot_engine* engine, const char* name) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    const char* collective = &require_not_null(name, "name");
    if (handle.recomputed != nullptr) return handle.recomputed->run(collective);
    if (!handle.open_scope)
      throw UsageError("aliquot_run_collective() was called while no unit was open: open a unit first");
    handle.open_scope->run(collective);
  });
}

int aliquot_next(aliquot_engine* engine, aliquot_work* work) {
  return catch_as_status([&] { open_work(require_not_null(engine, "engine"), &aliquot::Engine::next, work); });
}

int aliquot_next_evaluation(aliquot_engine* engine, aliquot_work* work) {
  return catch_as_status(
      [&] { open_work(require_not_null(engine, "engine"), &aliquot::Engine::next_evaluation, work); });
}

int aliquot_compare_loss(aliquot_engine* engine, double loss, int replayed) {
  return catch_as_status([&] { require_not_null(engine, "engine").engine.compare_loss(loss, replayed != 0); });
}

int aliquot_sum_losses(aliquot_engine* engine, int count, double* values) {
  return catch_as_status([&] {
    if (count < 0 || count > aliquot::Communicator::kSmallCount)
      throw UsageError(
          fmt::format("invalid count {}: expected 0 to {} values", count, aliquot::Communicator::kSmallCount));
    require_not_null(engine, "engine")
        .engine.sum_losses({&require_not_null(values, "values"), static_cast<std::size_t>(count)});
  });
}

int aliquot_skip(aliquot_engine* engine, int unit_count, const int* units) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    handle.engine.skip(ids_of(handle, unit_count, units));
  });
}

int aliquot_pass_over(aliquot_engine* engine, int unit_count, const int* units) {
  return aliquot_skip(engine, unit_count, units);
}

int aliquot_abandon(aliquot_engine* engine) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    handle.open_scope.reset();
    handle.engine.abandon();
  });
}

int aliquot_step(aliquot_engine* engine, aliquot_step_report* report) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    handle.report = handle.engine.step();
    if (report == nullptr) return;
    *report = {handle.report.step,
               handle.report.gradient_norm,
               handle.report.learning_rate,
               handle.report.loss_scale,
               handle.report.skipped ? 1 : 0,
               handle.report.abandoned_by,
               handle.report.first_not_finite.c_str()};
  });
}

int aliquot_set_learning_rate(aliquot_engine* engine, double rate) {
  return catch_as_status([&] { require_not_null(engine, "engine").engine.set_learning_rate(rate); });
}

int aliquot_loss_scale(aliquot_engine* engine, double* scale) {
  return catch_as_status(
      [&] { require_not_null(scale, "scale") = require_not_null(engine, "engine").engine.loss_scale(); });
}

int aliquot_step_count(aliquot_engine* engine, int64_t* steps) {
  return catch_as_status(
      [&] { require_not_null(steps, "steps") = require_not_null(engine, "engine").engine.step_count(); });
}

int aliquot_set_trainable(aliquot_engine* engine, const char* prefix, int trainable) {
  return catch_as_status([&] {
    require_not_null(engine, "engine").engine.set_trainable(&require_not_null(prefix, "prefix"), trainable != 0);
  });
}
