#include "engine/run/non_finite_gradient_detector.h"

#include <algorithm>
#include <span>

#include "engine/plan/sizes.h"

namespace aliquot {
namespace {

/// A value is not finite if all bits of its exponent are set.
template <typename Bits>
bool any_not_finite(const std::byte* at, int64_t size_bytes, Bits exponent) {
  const std::span values(reinterpret_cast<const Bits*>(at), static_cast<std::size_t>(size_bytes) / sizeof(Bits));
  return std::ranges::any_of(values, [=](Bits value) { return (value & exponent) == exponent; });
}

bool any_not_finite(const std::byte* at, int64_t size_bytes, DType dtype) {
  if (dtype == DType::kFloat32) return any_not_finite<uint32_t>(at, size_bytes, 0x7f800000u);
  return any_not_finite<uint16_t>(at, size_bytes, dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00);
}

}  // namespace

NonFiniteGradientDetector::NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, const Device& device)
    : plan_(plan), memory_(memory), supported_(device.kind() == DeviceKind::kHost) {}

void NonFiniteGradientDetector::begin_step(bool enabled) {
  enabled_ = enabled && supported_;
  found_ = false;
}

void NonFiniteGradientDetector::before(Stream& lane, OperationId operation) {
  const Operation& what = plan_.schedule.operations[operation];
  const bool sums = what.verb == Verb::kSumOverTensor;
  if (!enabled_ || (what.verb != Verb::kReduce && !sums)) return;
  for (const int32_t f : plan_.flats_of_unit[what.operand]) {
    if (plan_.sums_over_tensor(f) != sums) continue;
    const std::byte* gradients = memory_.peek(Role::kGradients, f);
    if (gradients == nullptr) continue;
    const int64_t size_bytes = needed_bytes(plan_, Role::kGradients, f);
    lane.run([this, gradients, size_bytes] {
      if (any_not_finite(gradients, size_bytes, plan_.policy.precision.gradients)) found_ = true;
    });
  }
}

}  // namespace aliquot
