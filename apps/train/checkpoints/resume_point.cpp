#include "apps/train/checkpoints/resume_point.h"

#include <cmath>
#include <fmt/format.h>

#include "checkpoint/difference.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

// The largest count that a checkpoint may contain. A double represents every count up to this one, and adding the size
// of a batch to it cannot overflow.
constexpr int64_t kMaxCount = int64_t{1} << 53;

[[noreturn]] void refuse(const char* name, const Scalar& value, const std::string& expected) {
  throw CheckpointError(fmt::format("the checkpoint's {} is {}: expected {}", name, describe(value), expected));
}

const Scalar* find(const State& state, const char* name) {
  const auto found = state.scalars.find(name);
  return found == state.scalars.end() ? nullptr : &found->second;
}

int64_t sequences_consumed(const State& state) {
  const Scalar* scalar = find(state, kSequencesConsumed);
  const auto* count = scalar == nullptr ? nullptr : std::get_if<int64_t>(scalar);
  if (count == nullptr) {
    throw UsageError(fmt::format(
        "the checkpoint has no scalar {}, so aliquot train did not write it: start from its weights with --init.",
        kSequencesConsumed));
  }
  if (*count < 0 || *count > kMaxCount)
    refuse(kSequencesConsumed, *scalar, fmt::format("a count from 0 to {}", kMaxCount));
  return *count;
}

bool is_count(double value) {
  return value >= 0 && value <= static_cast<double>(kMaxCount) && value == std::floor(value);
}

std::optional<SpikeGuard::Statistics> loss_statistics(const State& state) {
  const Scalar* scalar = find(state, kLossStatisticsName);
  if (scalar == nullptr) return std::nullopt;
  const auto* numbers = std::get_if<std::vector<double>>(scalar);
  const bool valid = numbers != nullptr && numbers->size() == 3 && std::isfinite((*numbers)[0]) &&
                     std::isfinite((*numbers)[1]) && (*numbers)[1] >= 0 && is_count((*numbers)[2]);
  if (!valid) refuse(kLossStatisticsName, *scalar, "a finite mean, a variance of 0 or more, and a number of losses");
  return SpikeGuard::Statistics{(*numbers)[0], (*numbers)[1], static_cast<int64_t>((*numbers)[2])};
}

}  // namespace

ResumePoint resume_point(const State& state) { return {sequences_consumed(state), loss_statistics(state)}; }

}  // namespace aliquot
