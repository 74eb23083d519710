// Functions that declare a model and initialize its engine.
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/options.h"
#include "capi/status.h"

using aliquot::BytesByCategory;
using aliquot::Category;
using aliquot::UsageError;
using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

aliquot::Unit& aliquot_engine::unit(int number) {
  const int count = static_cast<int>(engine.units().size());
  if (number < 0 || number >= count)
    throw UsageError(fmt::format("invalid unit number {}: the engine has {} units", number, count));
  return engine.units()[static_cast<std::size_t>(number)];
}

int aliquot_engine_create(aliquot_world* world, const aliquot_options* options, aliquot_engine** engine) {
  return catch_as_status([&] {
    const aliquot::capi::Options defaults;
    const auto& chosen = options == nullptr ? defaults : options->options;
    require_not_null(engine, "engine") =
        new aliquot_engine(*require_not_null(world, "world").world, chosen.engine_options());
  });
}

void aliquot_engine_free(aliquot_engine* engine) { delete engine; }

int aliquot_add_unit(aliquot_engine* engine, const char* name, int* unit) {
  return catch_as_status([&] {
    const int number = require_not_null(engine, "engine").engine.add_unit(&require_not_null(name, "name")).index();
    if (unit != nullptr) *unit = number;
  });
}

int aliquot_assigns_gradients(aliquot_engine* engine, int unit) {
  return catch_as_status([&] { require_not_null(engine, "engine").unit(unit).assigns_gradients(); });
}

namespace {

aliquot::PointerSlot pointer_slot(void* at, int element_bytes, const char* name) {
  switch (element_bytes) {
    case 0:
    case 4: return static_cast<float**>(at);
    case 2: return static_cast<uint16_t**>(at);
    default:
      throw UsageError(fmt::format("parameter {}: invalid element size of {} bytes: expected 4, or 2 for 16-bit types",
                                   name, element_bytes));
  }
}

}  // namespace

int aliquot_add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter* parameter) {
  return catch_as_status([&] {
    const aliquot_parameter& p = require_not_null(parameter, "parameter");
    const char* name = &require_not_null(p.name, "parameter->name");
    if (p.dimensions < 0)
      throw UsageError(fmt::format("parameter {}: dimensions is {}: expected 0 or more", name, p.dimensions));
    if (p.dimensions > 0 && p.shape == nullptr)
      throw UsageError(fmt::format("parameter {}: shape is null: expected {} extents", name, p.dimensions));
    require_not_null(engine, "engine")
        .unit(unit)
        .add(name, {p.shape, p.shape + p.dimensions}, pointer_slot(p.value, p.value_bytes, name),
             pointer_slot(p.gradient, p.gradient_bytes, name),
             {.trainable = p.frozen == 0,
              .decayed = p.not_decayed == 0,
              .lr_scale = p.lr_scale == 0.0f ? 1.0f : p.lr_scale,
              .decay_scale = p.decay_scale == 0.0f ? 1.0f : p.decay_scale,
              .matrix = p.no_matrix == 0});
  });
}

int aliquot_declare_order(aliquot_engine* engine, int use_count, const int* unit_counts, const int* units) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    std::vector<std::vector<aliquot::UnitId>> uses;
    for (int use = 0; use < use_count; ++use) {
      const int count = (&require_not_null(unit_counts, "unit_counts"))[use];
      if (count < 1) throw UsageError(fmt::format("unit_counts[{}] is {}: expected at least 1", use, count));
      uses.emplace_back();
      for (int i = 0; i < count; ++i)
        uses.back().push_back(handle.unit(*(&require_not_null(units, "units"))).index()), ++units;
    }
    handle.engine.declare_order(std::move(uses));
  });
}

int aliquot_declare_activations(aliquot_engine* engine, int use_count, const aliquot_activations* uses,
                                int64_t backward_bytes, aliquot_recompute recompute, void* context) {
  return catch_as_status([&] {
    if (use_count < 1) throw UsageError(fmt::format("use_count is {}: expected at least 1", use_count));
    aliquot::ActivationSpec spec;
    for (int use = 0; use < use_count; ++use) {
      const aliquot_activations& activations = (&require_not_null(uses, "uses"))[use];
      spec.uses.push_back({.output_bytes = activations.output,
                           .kept_bytes = activations.kept,
                           .scratch_bytes = activations.scratch,
                           .recomputable = activations.recomputable != 0,
                           .input_in_backward = activations.input_not_read == 0,
                           .output_in_backward = activations.output_not_read == 0,
                           .splits_backward = activations.splits_backward != 0,
                           .weight_inputs_bytes = activations.weight_inputs});
    }
    spec.backward_bytes = backward_bytes;
    aliquot::Recompute recompute_callback;
    if (recompute != nullptr) {
      recompute_callback = [recompute, context](const aliquot::UseMemory& memory) {
        const aliquot_use_memory at = aliquot::capi::use_memory(memory);
        aliquot::capi::check_callback_status(recompute(context, &at), "the recompute callback");
      };
    }
    require_not_null(engine, "engine").engine.declare_activations(std::move(spec), std::move(recompute_callback));
  });
}

namespace {

aliquot_memory to_c_memory(const BytesByCategory& bytes, int64_t peak) {
  const auto bytes_of = [&](Category category) { return bytes[static_cast<std::size_t>(category)]; };
  return {bytes_of(Category::kParameters),    bytes_of(Category::kGradients),
          bytes_of(Category::kOptimizer),     bytes_of(Category::kSlots),
          bytes_of(Category::kCommunication), bytes_of(Category::kStaging),
          bytes_of(Category::kActivations),   peak};
}

}  // namespace

int aliquot_planned_memory(aliquot_engine* engine, aliquot_memory* memory) {
  return catch_as_status([&] {
    const aliquot::Account account = aliquot::account(require_not_null(engine, "engine").engine.plan().schedule);
    require_not_null(memory, "memory") = to_c_memory(account.peak, account.peak_bytes);
  });
}

int aliquot_measured_memory(aliquot_engine* engine, aliquot_memory* memory) {
  return catch_as_status([&] {
    const aliquot::Ledger& ledger = require_not_null(engine, "engine").engine.world().device().ledger();
    require_not_null(memory, "memory") = to_c_memory(ledger.peak(), ledger.in_use_peak_bytes());
  });
}

int aliquot_materialize(aliquot_engine* engine, aliquot_initialize initialize, void* context) {
  return catch_as_status([&] {
    const auto fill = &require_not_null(initialize, "initialize");
    require_not_null(engine, "engine")
        .engine.materialize([&](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
          const std::string& name = parameter.tensor.name;
          aliquot::capi::check_callback_status(
              fill(context, name.c_str(), offset, static_cast<int64_t>(values.size()), values.data()),
              "the initialize callback for " + name);
        });
  });
}

int aliquot_compute_on(aliquot_engine* engine, void* stream) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    native_engine.compute_on(aliquot::wrap_cuda_stream(native_engine.world().device(), aliquot::Lane::kCompute,
                                                       static_cast<CUstream_st*>(stream)));
  });
}
