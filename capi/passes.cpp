// The steps of a training, and the scopes in them.
#include <fmt/format.h>
#include <vector>

#include "capi/handles.h"
#include "capi/status.h"

using aliquot::UsageError;
using aliquot::capi::given;
using aliquot::capi::guarded;

namespace {

/// As the engine has it, which takes lists that are written out.
aliquot::Scope open(aliquot_engine& of, int use, int unit_count, const int* units) {
  std::vector<aliquot::UnitId> ids;
  for (int i = 0; i < unit_count; ++i) ids.push_back(of.unit((&given(units, "the units"))[i]).index());
  switch (use) {
    case ALIQUOT_FORWARD: return of.engine.forward(ids);
    case ALIQUOT_BACKWARD: return of.engine.backward(ids);
    case ALIQUOT_EVALUATE: return of.engine.evaluate(ids);
    default: throw UsageError(fmt::format("there is no use {}", use));
  }
}

}  // namespace

int aliquot_micro_batch(aliquot_engine* engine) {
  // The pass ends by itself: in C no exception leaves it.
  return guarded([&] { given(engine, "the engine").engine.micro_batch(); });
}

int aliquot_open(aliquot_engine* engine, int use, int unit_count, const int* units) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    aliquot::Scope scope = open(of, use, unit_count, units);  // throws where one is open already
    of.live.emplace(std::move(scope));
  });
}

int aliquot_forward(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_FORWARD, 1, &unit); }
int aliquot_backward(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_BACKWARD, 1, &unit); }
int aliquot_evaluate(aliquot_engine* engine, int unit) { return aliquot_open(engine, ALIQUOT_EVALUATE, 1, &unit); }

int aliquot_close(aliquot_engine* engine) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    if (!of.live) throw UsageError("no unit is open, so none can be closed");
    of.live.reset();
  });
}

int aliquot_memory_of_use(aliquot_engine* engine, aliquot_use_memory* memory) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    if (!of.live) throw UsageError("no unit is open, so nothing of it has a place");
    given(memory, "where the places go") = aliquot::capi::use_memory(of.live->memory());
  });
}

int aliquot_pass_over(aliquot_engine* engine, int unit_count, const int* units) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    std::vector<aliquot::UnitId> ids;
    for (int i = 0; i < unit_count; ++i) ids.push_back(of.unit((&given(units, "the units"))[i]).index());
    of.engine.skip(ids);
  });
}

int aliquot_abandon(aliquot_engine* engine) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    of.live.reset();
    of.engine.abandon();
  });
}

int aliquot_step(aliquot_engine* engine, aliquot_step_report* report) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    of.report = of.engine.step();
    if (report == nullptr) return;
    *report = {of.report.step,
               of.report.gradient_norm,
               of.report.learning_rate,
               of.report.loss_scale,
               of.report.skipped ? 1 : 0,
               of.report.abandoned_by,
               of.report.first_not_finite.c_str()};
  });
}

int aliquot_set_learning_rate(aliquot_engine* engine, double rate) {
  return guarded([&] { given(engine, "the engine").engine.set_learning_rate(rate); });
}

int aliquot_loss_scale(aliquot_engine* engine, double* scale) {
  return guarded([&] { given(scale, "where the scale goes") = given(engine, "the engine").engine.loss_scale(); });
}

int aliquot_step_count(aliquot_engine* engine, int64_t* steps) {
  return guarded([&] { given(steps, "where the count goes") = given(engine, "the engine").engine.step_count(); });
}

int aliquot_set_trainable(aliquot_engine* engine, const char* prefix, int trainable) {
  return guarded([&] {
    given(engine, "the engine").engine.set_trainable(&given(prefix, "the names' beginning"), trainable != 0);
  });
}
