#include "engine/run/memory/pointer_bindings.h"

#include <fmt/format.h>
#include <map>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Slots = std::vector<std::vector<PointerSlots>>;

/// Returns the number of elements of a parameter that a rank of a tensor group has.
int64_t element_count(const ParameterSpec& parameter, int coordinate, int tensor) {
  return Slice(parameter.tensor.shape, parameter.split, coordinate, tensor).element_count();
}

/// Returns the slots of all values or of all gradients, in the order of the units and their parameters.
std::vector<SlotGuards::Slot> flattened(const Plan& plan, const Slots& slots, PointerSlot PointerSlots::*which,
                                        DType dtype, int coordinate) {
  std::vector<SlotGuards::Slot> all;
  for (std::size_t u = 0; u < slots.size(); ++u) {
    for (std::size_t p = 0; p < slots[u].size(); ++p) {
      const ParameterSpec& parameter = plan.model.units[u].parameters[p];
      const int64_t count = element_count(parameter, coordinate, plan.policy.tensor);
      all.push_back({slots[u][p].*which, parameter.tensor.name, count * element_bytes(dtype)});
    }
  }
  return all;
}

void check_element_size(const PointerSlot& slot, DType dtype, std::string_view what, std::string_view parameter) {
  if (slot.element_bytes() == 0 || slot.element_bytes() == element_bytes(dtype)) return;
  throw UsageError(
      fmt::format("the model's pointer to the {} of {} points to elements of {} bytes, but the engine stores {}: use a "
                  "pointer to elements of {} bytes, or change EngineOptions::precision",
                  what, parameter, slot.element_bytes(), name(dtype), element_bytes(dtype)));
}

void check_slots(const Plan& plan, const Slots& slots) {
  for (std::size_t u = 0; u < slots.size(); ++u) {
    for (std::size_t p = 0; p < slots[u].size(); ++p) {
      const std::string& parameter = plan.model.units[u].parameters[p].tensor.name;
      check_element_size(slots[u][p].value, plan.policy.precision.compute, "values", parameter);
      check_element_size(slots[u][p].gradient, plan.policy.precision.gradients, "gradient", parameter);
      const bool trained = plan.model.units[u].parameters[p].tensor.trainable;
      if (trained && !slots[u][p].value.empty() && slots[u][p].gradient.empty()) {
        throw UsageError(
            fmt::format("{} is trainable, but has no pointer to its gradient: pass one to Unit::add(), or declare the "
                        "parameter with {{.trainable = false}}",
                        parameter));
      }
    }
  }
}

[[noreturn]] void refuse_shared(const std::string& first, const std::string& second, bool slices) {
  throw UsageError(fmt::format("{} and {} use the same pointer, but are used together: {}", first, second,
                               slices ? "expected a use of one slice only, because a pointer leads to one slice at a "
                                        "time"
                                      : "expected a different pointer for each"));
}

void refuse_shared_pointers(const Plan& plan, const Slots& slots) {
  for (const auto& use : plan.model.uses) {
    std::map<const void*, const std::string*> taken;
    for (const UnitId unit : use) {
      for (std::size_t p = 0; p < slots[unit].size(); ++p) {
        const std::string& parameter = plan.model.units[unit].parameters[p].tensor.name;
        for (const PointerSlot& slot : {slots[unit][p].value, slots[unit][p].gradient}) {
          if (slot.empty()) continue;
          const auto [other, first] = taken.emplace(slot.where(), &parameter);
          if (!first) refuse_shared(*other->second, parameter, slot.slice_count() > 0);
        }
      }
    }
  }
}

/// Checks the slots, and returns them.
const Slots& checked(const Plan& plan, const Slots& slots) {
  check_slots(plan, slots);
  refuse_shared_pointers(plan, slots);
  return slots;
}

}  // namespace

PointerBindings::PointerBindings(const Plan& plan, const Slots& slots, int coordinate)
    : plan_(plan),
      values_(flattened(plan, checked(plan, slots), &PointerSlots::value, plan.policy.precision.compute, coordinate),
              "parameter "),
      gradients_(flattened(plan, slots, &PointerSlots::gradient, plan.policy.precision.gradients, coordinate),
                 "the gradient of ") {
  std::size_t next = 0;
  for (const UnitSpec& unit : plan.model.units) {
    first_of_unit_.push_back(next);
    next += unit.parameters.size();
  }
  guard_all();
}

void PointerBindings::guard_all() {
  for (UnitId u = 0; u < static_cast<UnitId>(plan_.model.units.size()); ++u) close(u);
}

PointerBindings::~PointerBindings() {
  for (const SlotGuards* slots : {&values_, &gradients_}) slots->set_null();
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
    const std::size_t slot = first_of_unit_[unit] + parameter;
    if (reads_parameters(verb)) values_.set(slot, addresses.values(flat) + offset * element_bytes(precision.compute));
    if (!computes_weight_gradients(verb) || gradients_.slot(slot).empty() || !plan_.flats[flat].trainable) return;
    gradients_.set(slot, addresses.gradients(flat) + offset * element_bytes(precision.gradients));
  });
}

void PointerBindings::close(UnitId unit) {
  for_parameters(unit, [&](int32_t, int64_t, std::size_t parameter) {
    values_.set(first_of_unit_[unit] + parameter);
    gradients_.set(first_of_unit_[unit] + parameter);
  });
}

}  // namespace aliquot
