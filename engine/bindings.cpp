#include "engine/bindings.h"

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

void set(float** slot, std::byte* address) {
  if (slot != nullptr) *slot = reinterpret_cast<float*>(address);
}

}  // namespace

Bindings::Bindings(const Plan& plan, const StepMemory& memory, std::vector<std::vector<PointerSlots>> slots)
    : plan_(plan),
      memory_(memory),
      slots_(std::move(slots)),
      values_(guarded(plan.model, "")),
      gradients_(guarded(plan.model, "gradient of ")) {
  std::size_t next = 0;
  for (const UnitSpec& unit : plan.model.units) {
    first_of_unit_.push_back(next);
    next += unit.parameters.size();
  }
  for (UnitId u = 0; u < static_cast<UnitId>(plan.model.units.size()); ++u) close(u);
}

Bindings::~Bindings() {
  for (auto& unit : slots_) {
    for (PointerSlots& slots : unit) {
      set(slots.value, nullptr);
      set(slots.gradient, nullptr);
    }
  }
}

template <typename Body>
void Bindings::for_parameters(UnitId unit, Body body) {
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    const FlatSpec& flat = plan_.flats[f];
    for (std::size_t t = 0; t < flat.parameters.size(); ++t) {
      body(f, flat.layout.tensor_offset(static_cast<int32_t>(t)), static_cast<std::size_t>(flat.parameters[t]));
    }
  }
}

void Bindings::open(UnitId unit, bool backward) {
  for_parameters(unit, [&](int32_t flat, int64_t offset, std::size_t parameter) {
    const PointerSlots& slots = slots_[unit][parameter];
    if (slots.value != nullptr) *slots.value = memory_.whole(flat) + offset;
    if (!backward || slots.gradient == nullptr || !plan_.flats[flat].trainable) return;
    *slots.gradient = reinterpret_cast<float*>(memory_.address(Role::kGradients, flat)) + offset;
  });
}

void Bindings::close(UnitId unit) {
  for_parameters(unit, [&](int32_t, int64_t, std::size_t parameter) {
    set(slots_[unit][parameter].value, values_.address(first_of_unit_[unit] + parameter));
    set(slots_[unit][parameter].gradient, gradients_.address(first_of_unit_[unit] + parameter));
  });
}

}  // namespace aliquot
