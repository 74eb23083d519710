#include "engine/run/non_finite_gradient_detector.h"

#include <algorithm>
#include <memory>

#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

NonFiniteGradientDetector::NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, Device& device)
    : plan_(plan), memory_(memory), kernels_(device.kernels()) {
  const int64_t element = element_bytes(plan.policy.precision.gradients);
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
    const Operation& what = plan.schedule.operations[id];
    const bool sums = what.verb == Verb::kSumOverTensor;
    if (what.verb != Verb::kReduce && !sums) continue;
    for (const int32_t f : plan.flats_of_unit[what.operand]) {
      if (plan.sums_over_tensor(f) == sums && plan.trains(f))
        searches_.push_back({id, f, needed_bytes(plan, Role::kGradients, f) / element});
    }
  }
  if (device.kind() == DeviceKind::kHost) {
    host_results_.resize(searches_.size());
    results_ = host_results_;
  } else if (!searches_.empty()) {
    pinned_results_ = device.allocate_host(std::ssize(searches_) * static_cast<int64_t>(sizeof(int64_t)),
                                           "indices of gradients that are not finite");
    results_ = {pinned_results_.as<int64_t>(), searches_.size()};
    std::ranges::uninitialized_fill(results_, 0);
  }
}

void NonFiniteGradientDetector::begin_step(bool enabled) {
  enabled_ = enabled;
  for (std::size_t i = 0; enabled && i < searches_.size(); ++i) results_[i] = searches_[i].count;
}

void NonFiniteGradientDetector::before(Stream& lane, OperationId operation) {
  if (!enabled_) return;
  const auto [first, last] = std::ranges::equal_range(searches_, operation, {}, &Search::operation);
  for (auto search = first; search != last; ++search) {
    const std::byte* gradients = memory_.peek(Role::kGradients, search->flat);
    if (gradients == nullptr) continue;
    kernels_.find_nonfinite(lane, &results_[static_cast<std::size_t>(search - searches_.begin())], gradients,
                            plan_.policy.precision.gradients, search->count);
  }
}

bool NonFiniteGradientDetector::found() const {
  bool found = false;
  for (std::size_t i = 0; enabled_ && i < searches_.size(); ++i) found = found || results_[i] < searches_[i].count;
  return found;
}

}  // namespace aliquot
