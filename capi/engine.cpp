// Functions that declare a model and initialize its engine.
#include <array>
#include <fmt/format.h>
#include <tuple>

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
    throw UsageError(
        fmt::format("invalid unit number {}: the engine has {} unit{}", number, count, count == 1 ? "" : "s"));
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

/// Returns the split of a parameter, which `name` is in messages.
aliquot::Split split_of(const aliquot_parameter& p, const char* name) {
  if (p.split < ALIQUOT_NOT_SPLIT || p.split > ALIQUOT_SPLIT_COLUMNS)
    throw UsageError(fmt::format(
        "parameter {}: split is {}: expected ALIQUOT_NOT_SPLIT, ALIQUOT_SPLIT_ROWS or ALIQUOT_SPLIT_COLUMNS", name,
        p.split));
  if (p.split == ALIQUOT_NOT_SPLIT && p.part_count != 0)
    throw UsageError(fmt::format("parameter {}: part_count is {}, but split is ALIQUOT_NOT_SPLIT", name, p.part_count));
  if (p.part_count < 0)
    throw UsageError(fmt::format("parameter {}: part_count is {}: expected 0 or more", name, p.part_count));
  if (p.part_count > 0 && p.part_lengths == nullptr)
    throw UsageError(fmt::format("parameter {}: part_lengths is null: expected {} lengths", name, p.part_count));
  aliquot::Split split{p.split - 1};
  for (int part = 0; part < p.part_count; ++part)
    split.parts.emplace_back(p.part_lengths[part], p.part_units == nullptr ? 1 : p.part_units[part]);
  return split;
}

/// Declares a parameter. `slot_of(address, element_bytes)` makes the slots of its values and of its gradient.
template <typename SlotOf>
void add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter& p, const char* name, SlotOf slot_of) {
  if (p.dimensions < 0)
    throw UsageError(fmt::format("parameter {}: dimensions is {}: expected 0 or more", name, p.dimensions));
  if (p.dimensions > 0 && p.shape == nullptr)
    throw UsageError(fmt::format("parameter {}: shape is null: expected {} extents", name, p.dimensions));
  require_not_null(engine, "engine")
      .unit(unit)
      .add(name, {p.shape, p.shape + p.dimensions}, slot_of(p.value, p.value_bytes),
           slot_of(p.gradient, p.gradient_bytes),
           {.trainable = p.frozen == 0,
            .decayed = p.not_decayed == 0,
            .lr_scale = p.lr_scale == 0.0f ? 1.0f : p.lr_scale,
            .decay_scale = p.decay_scale == 0.0f ? 1.0f : p.decay_scale,
            .matrix = p.no_matrix == 0,
            .split = split_of(p, name),
            .partial_gradient = p.partial_gradient != 0});
}

}  // namespace

int aliquot_add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter* parameter) {
  return catch_as_status([&] {
    const aliquot_parameter& p = require_not_null(parameter, "parameter");
    const char* name = &require_not_null(p.name, "parameter->name");
    add_parameter(engine, unit, p, name, [&](void* at, int bytes) { return pointer_slot(at, bytes, name); });
  });
}

int aliquot_add_slice(aliquot_engine* engine, int unit, const aliquot_parameter* parameter, int64_t index,
                      int64_t count) {
  return catch_as_status([&] {
    const aliquot_parameter& p = require_not_null(parameter, "parameter");
    const char* name = &require_not_null(p.name, "parameter->name");
    add_parameter(engine, unit, p, name,
                  [&](void* at, int bytes) { return slice(pointer_slot(at, bytes, name), index, count); });
  });
}

int aliquot_rank_range(int64_t count, int tensor_rank, int tensor, int64_t* first, int64_t* end) {
  return catch_as_status([&] {
    if (count < 0 || tensor < 1 || tensor_rank < 0 || tensor_rank >= tensor)
      throw UsageError(fmt::format(
          "count is {}, tensor_rank is {} and tensor is {}: expected 0 or more units, and a rank below tensor", count,
          tensor_rank, tensor));
    std::tie(require_not_null(first, "first"), require_not_null(end, "end")) =
        aliquot::rank_range(count, tensor_rank, tensor);
  });
}

int aliquot_declare_order(aliquot_engine* engine, int use_count, const int* unit_counts, const int* units) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    if (use_count < 1) throw UsageError(fmt::format("use_count is {}: expected at least 1", use_count));
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

namespace {

/// Returns `values[index]`. Throws UsageError, naming the field, if there is no such value.
template <typename Value, std::size_t kCount>
Value field_of(const std::array<Value, kCount>& values, int index, const char* field) {
  if (index < 0 || index >= static_cast<int>(kCount))
    throw UsageError(fmt::format("collective: {} is {}: expected 0 to {}", field, index, kCount - 1));
  return values[static_cast<std::size_t>(index)];
}

aliquot::UsePart part_of(int part) {
  switch (part) {
    case ALIQUOT_FORWARD: return aliquot::UsePart::kForward;
    case ALIQUOT_BACKWARD: return aliquot::UsePart::kBackward;
    case ALIQUOT_BACKWARD_WEIGHTS: return aliquot::UsePart::kBackwardWeights;
    default:
      throw UsageError(fmt::format(
          "collective: part is {}: expected ALIQUOT_FORWARD, ALIQUOT_BACKWARD or ALIQUOT_BACKWARD_WEIGHTS", part));
  }
}

aliquot::UseCollective collective_of(const aliquot_collective& c) {
  using aliquot::CollectiveKind, aliquot::UseBuffer, aliquot::DType;
  constexpr std::array kKinds{CollectiveKind::kSum, CollectiveKind::kGather, CollectiveKind::kScatterSum};
  constexpr std::array kBuffers{UseBuffer::kOutput, UseBuffer::kSaved, UseBuffer::kScratch, UseBuffer::kBackward};
  constexpr std::array kTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  return {.name = &require_not_null(c.name, "collective name"),
          .kind = field_of(kKinds, c.kind, "kind"),
          .part = part_of(c.part),
          .buffer = field_of(kBuffers, c.buffer, "buffer"),
          .offset_bytes = c.offset,
          .rows = c.rows,
          .row_elements = c.row_elements,
          .dtype = field_of(kTypes, c.type, "type"),
          .in_recompute = c.not_in_recompute == 0};
}

}  // namespace

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
      if (activations.collective_count < 0)
        throw UsageError(
            fmt::format("use {}: collective_count is {}: expected 0 or more", use, activations.collective_count));
      for (int i = 0; i < activations.collective_count; ++i) {
        const aliquot_collective* all = &require_not_null(activations.collectives, "collectives");
        spec.uses.back().collectives.push_back(collective_of(all[i]));
      }
    }
    spec.backward_bytes = backward_bytes;
    aliquot_engine& handle = require_not_null(engine, "engine");
    aliquot::Recompute recompute_callback;
    if (recompute != nullptr) {
      recompute_callback = [recompute, context, &handle](const aliquot::UseMemory& memory) {
        const aliquot_use_memory at = aliquot::capi::use_memory(memory);
        handle.recomputed = &memory;
        const int status = recompute(context, &at);
        handle.recomputed = nullptr;
        aliquot::capi::check_callback_status(status, "the recompute callback");
      };
    }
    handle.engine.declare_activations(std::move(spec), std::move(recompute_callback));
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
