#include "engine/run/memory/pointer_bindings.h"

#include <fmt/format.h>
#include <map>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::vector<GuardRange::Tensor> guarded(const ModelSpec& model, std::string_view prefix) {
  std::vector<GuardRange::Tensor> tensors;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const int64_t size_bytes = parameter.tensor.element_count() * element_bytes(parameter.tensor.dtype);
      tensors.push_back({std::string(prefix) + parameter.tensor.name, size_bytes});
    }
  }
  return tensors;
}

void check(const PointerSlot& slot, DType dtype, std::string_view what, std::string_view parameter) {
  if (slot.element_bytes() == 0 || slot.element_bytes() == element_bytes(dtype)) return;
  throw UsageError(
      fmt::format("the model's pointer to the {} of {} points to elements of {} bytes, but the engine stores {}: use a "
                  "pointer to elements of {} bytes, or change EngineOptions::precision",
                  what, parameter, slot.element_bytes(), name(dtype), element_bytes(dtype)));
}

}  // namespace

PointerBindings::PointerBindings(const Plan& plan, std::vector<std::vector<PointerSlots>> slots)
    : plan_(plan),
      slots_(std::move(slots)),
      values_(guarded(plan.model, "")),
      gradients_(guarded(plan.model, "gradient of ")) {
  std::size_t next = 0;
  for (const UnitSpec& unit : plan.model.units) {
    first_of_unit_.push_back(next);
    next += unit.parameters.size();
  }
  check_slots();
  refuse_shared_pointers();
  guard_all();
}

void PointerBindings::guard_all() {
  for (UnitId u = 0; u < static_cast<UnitId>(plan_.model.units.size()); ++u) close(u);
}

void PointerBindings::check_slots() const {
  for (std::size_t u = 0; u < slots_.size(); ++u) {
    for (std::size_t p = 0; p < slots_[u].size(); ++p) {
      const std::string& parameter = plan_.model.units[u].parameters[p].tensor.name;
      check(slots_[u][p].value, plan_.policy.precision.compute, "values", parameter);
      check(slots_[u][p].gradient, plan_.policy.precision.gradients, "gradient", parameter);
      const bool trained = plan_.model.units[u].parameters[p].tensor.trainable;
      if (trained && !slots_[u][p].value.empty() && slots_[u][p].gradient.empty()) {
        throw UsageError(
            fmt::format("{} is trainable, but has no pointer to its gradient: pass one to Unit::add(), or declare the "
                        "parameter with {{.trainable = false}}",
                        parameter));
      }
    }
  }
}

void PointerBindings::refuse_shared_pointers() const {
  for (const auto& use : plan_.model.uses) {
    std::map<const void*, const std::string*> taken;
    for (const UnitId unit : use) {
      for (std::size_t p = 0; p < slots_[unit].size(); ++p) {
        const std::string& parameter = plan_.model.units[unit].parameters[p].tensor.name;
        for (const void* pointer : {slots_[unit][p].value.where(), slots_[unit][p].gradient.where()}) {
          if (pointer == nullptr) continue;
          const auto [other, first] = taken.emplace(pointer, &parameter);
          if (first) continue;
          throw UsageError(fmt::format(
              "{} and {} use the same pointer, but are used together: expected a different pointer for each",
              *other->second, parameter));
        }
      }
    }
  }
}

PointerBindings::~PointerBindings() {
  for (auto& unit : slots_) {
    for (PointerSlots& slots : unit) {
      slots.value.set(nullptr);
      slots.gradient.set(nullptr);
    }
  }
}

template <typename Body>
void PointerBindings::for_parameters(UnitId unit, Body body) {
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    const FlatSpec& flat = plan_.flats[f];
    for (std::size_t t = 0; t < flat.parameters.size(); ++t) {
      body(f, flat.layout.tensor_offset(static_cast<int32_t>(t)), static_cast<std::size_t>(flat.parameters[t]));
    }
  }
}

void PointerBindings::open(UnitId unit, Verb verb, const ModelAddresses& addresses) {
  const Precision& precision = plan_.policy.precision;
  for_parameters(unit, [&](int32_t flat, int64_t offset, std::size_t parameter) {
    const PointerSlots& slots = slots_[unit][parameter];
    if (reads_parameters(verb)) slots.value.set(addresses.values(flat) + offset * element_bytes(precision.compute));
    if (!computes_weight_gradients(verb) || slots.gradient.empty() || !plan_.flats[flat].trainable) return;
    slots.gradient.set(addresses.gradients(flat) + offset * element_bytes(precision.gradients));
  });
}

void PointerBindings::close(UnitId unit) {
  for_parameters(unit, [&](int32_t, int64_t, std::size_t parameter) {
    slots_[unit][parameter].value.set(values_.address(first_of_unit_[unit] + parameter));
    slots_[unit][parameter].gradient.set(gradients_.address(first_of_unit_[unit] + parameter));
  });
}

}  // namespace aliquot
