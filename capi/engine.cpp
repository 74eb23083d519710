// Declaring a model, and bringing its engine to life.
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/options.h"
#include "capi/status.h"

using aliquot::BytesByCategory;
using aliquot::Category;
using aliquot::UsageError;
using aliquot::capi::given;
using aliquot::capi::guarded;

aliquot::Unit& aliquot_engine::unit(int number) {
  const int count = static_cast<int>(engine.units().size());
  if (number < 0 || number >= count) throw UsageError(fmt::format("there is no unit {}: there are {}", number, count));
  return engine.units()[static_cast<std::size_t>(number)];
}

int aliquot_engine_create(aliquot_world* world, const aliquot_options* options, aliquot_engine** engine) {
  return guarded([&] {
    const aliquot::capi::Options defaults;
    const auto& chosen = options == nullptr ? defaults : options->options;
    given(engine, "where the engine goes") =
        new aliquot_engine(*given(world, "the world").world, chosen.engine_options());
  });
}

void aliquot_engine_free(aliquot_engine* engine) { delete engine; }

int aliquot_add_unit(aliquot_engine* engine, const char* name, int* unit) {
  return guarded([&] {
    const int number = given(engine, "the engine").engine.add_unit(&given(name, "a unit's name")).index();
    if (unit != nullptr) *unit = number;
  });
}

int aliquot_assigns_gradients(aliquot_engine* engine, int unit) {
  return guarded([&] { given(engine, "the engine").unit(unit).assigns_gradients(); });
}

namespace {

aliquot::PointerSlot slot(void* at, int element_bytes, const char* name) {
  switch (element_bytes) {
    case 0:
    case 4: return static_cast<float**>(at);
    case 2: return static_cast<uint16_t**>(at);
    default:
      throw UsageError(
          fmt::format("the elements of {} cannot have {} bytes: give 4, or 2 for 16-bit types", name, element_bytes));
  }
}

}  // namespace

int aliquot_add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter* parameter) {
  return guarded([&] {
    const aliquot_parameter& p = given(parameter, "the parameter");
    const char* name = &given(p.name, "a parameter's name");
    if (p.dimensions < 0 || (p.dimensions > 0 && p.shape == nullptr)) {
      throw UsageError(fmt::format("the parameter {} has no shape", name));
    }
    given(engine, "the engine")
        .unit(unit)
        .add(name, {p.shape, p.shape + p.dimensions}, slot(p.value, p.value_bytes, name),
             slot(p.gradient, p.gradient_bytes, name),
             {.trainable = p.frozen == 0,
              .decayed = p.not_decayed == 0,
              .lr_scale = p.lr_scale == 0.0f ? 1.0f : p.lr_scale,
              .decay_scale = p.decay_scale == 0.0f ? 1.0f : p.decay_scale,
              .matrix = p.no_matrix == 0});
  });
}

int aliquot_declare_order(aliquot_engine* engine, int use_count, const int* unit_counts, const int* units) {
  return guarded([&] {
    aliquot_engine& of = given(engine, "the engine");
    std::vector<std::vector<aliquot::UnitId>> uses;
    for (int use = 0; use < use_count; ++use) {
      const int count = (&given(unit_counts, "the units' counts"))[use];
      if (count < 1) throw UsageError(fmt::format("use {} is of {} units", use, count));
      uses.emplace_back();
      for (int i = 0; i < count; ++i) uses.back().push_back(of.unit(*(&given(units, "the units"))).index()), ++units;
    }
    of.engine.declare_order(std::move(uses));
  });
}

int aliquot_declare_activations(aliquot_engine* engine, int use_count, const aliquot_activations* uses,
                                int64_t backward_bytes, aliquot_recompute recompute, void* context) {
  return guarded([&] {
    if (use_count < 1) throw UsageError("activations are declared for as many uses as there are");
    aliquot::ActivationSpec spec;
    for (int use = 0; use < use_count; ++use) {
      const aliquot_activations& of = (&given(uses, "the uses' activations"))[use];
      spec.uses.push_back(
          {of.output, of.kept, of.scratch, of.recomputable != 0, of.input_not_read == 0, of.output_not_read == 0});
    }
    spec.backward_bytes = backward_bytes;
    aliquot::Recompute again;
    if (recompute != nullptr) {
      again = [recompute, context](const aliquot::UseMemory& memory) {
        const aliquot_use_memory at = aliquot::capi::use_memory(memory);
        aliquot::capi::require_done(recompute(context, &at), "the function that runs forward again");
      };
    }
    given(engine, "the engine").engine.declare_activations(std::move(spec), std::move(again));
  });
}

namespace {

aliquot_memory memory_of(const BytesByCategory& bytes, int64_t peak) {
  const auto of = [&](Category category) { return bytes[static_cast<std::size_t>(category)]; };
  return {of(Category::kParameters),    of(Category::kGradients), of(Category::kOptimizer),   of(Category::kSlots),
          of(Category::kCommunication), of(Category::kStaging),   of(Category::kActivations), peak};
}

}  // namespace

int aliquot_planned_memory(aliquot_engine* engine, aliquot_memory* memory) {
  return guarded([&] {
    const aliquot::Account account = aliquot::account(given(engine, "the engine").engine.plan().schedule);
    given(memory, "where the bytes go") = memory_of(account.peak, account.peak_bytes);
  });
}

int aliquot_measured_memory(aliquot_engine* engine, aliquot_memory* memory) {
  return guarded([&] {
    const aliquot::Ledger& ledger = given(engine, "the engine").engine.world().device().ledger();
    given(memory, "where the bytes go") = memory_of(ledger.peak(), ledger.in_use_peak_bytes());
  });
}

int aliquot_materialize(aliquot_engine* engine, aliquot_initialize initialize, void* context) {
  return guarded([&] {
    const auto fill = &given(initialize, "the function of initial values");
    given(engine, "the engine")
        .engine.materialize([&](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
          const std::string& name = parameter.tensor.name;
          aliquot::capi::require_done(
              fill(context, name.c_str(), offset, static_cast<int64_t>(values.size()), values.data()),
              "the function of initial values, asked for " + name + ",");
        });
  });
}

int aliquot_compute_on(aliquot_engine* engine, void* stream) {
  return guarded([&] {
    aliquot::Engine& of = given(engine, "the engine").engine;
    of.compute_on(
        aliquot::wrap_cuda_stream(of.world().device(), aliquot::Lane::kCompute, static_cast<CUstream_st*>(stream)));
  });
}
