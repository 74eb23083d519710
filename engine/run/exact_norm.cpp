#include "engine/run/exact_norm.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/reduction.h"

namespace aliquot {
namespace {

__extension__ using Sum = unsigned __int128;

/// Sums are exchanged as digits of this many bits. Doubles add such digits of up to 2^22 ranks exactly.
constexpr int kDigitBits = kFixedDigitBits, kDigits = 4;

void set_digits(std::span<double> values, Sum sum) {
  for (double& digit : values) {
    digit = static_cast<double>(static_cast<uint32_t>(sum & ((Sum{1} << kDigitBits) - 1)));
    sum >>= kDigitBits;
  }
}

double value_of(std::span<const double> values, int exponent) {
  Sum sum = 0;
  for (auto digit = values.rbegin(); digit != values.rend(); ++digit)
    sum = (sum << kDigitBits) + static_cast<uint64_t>(*digit);
  return std::ldexp(static_cast<double>(sum), exponent);
}

}  // namespace

ExactNorm::ExactNorm(const Plan& plan, const MeshGroups& groups)
    : plan_(plan), groups_(groups), device_(groups.world().device()) {
  const MeshCoordinates& rank = groups.coordinates();
  int64_t most = 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (!plan.trains(f)) continue;
    const FlatSpec& flat = plan.flats[f];
    const bool is_slice = flat.gradients == TensorGradients::kSlice;
    own_.push_back({f, flat.layout.shard_count(), rank.replica == 0 && (is_slice || rank.tensor == 0)});
    most = std::max(most, flat.layout.shard_count() / kBlockElements);
  }
  if (device_.kind() != DeviceKind::kHost)
    mirror_ = device_.allocate_host(most * static_cast<int64_t>(sizeof(double)), "exact sums of squares");
}

const std::byte* ExactNorm::gradients(const StepMemory& memory, const Gradients& of) const {
  const Role role = plan_.updated_gradients();
  const std::byte* at = memory.address(role, of.flat, AccessMode::kReads);
  const int64_t part = role == Role::kGradients ? groups_.shard_group().rank() : 0;
  return at + part * of.count * element_bytes(plan_.policy.precision.gradients);
}

/// Calls enqueue(gradients, count, block values) for the gradients that this rank reads. It enqueues the kernel that
/// computes these values, and returns a function that reads them on the host.
template <class Enqueue>
void ExactNorm::for_block_values(Stream& reduce, const StepMemory& memory, bool all, const Enqueue& enqueue) {
  const bool mirrors = mirror_.data() != nullptr;
  for (const Gradients& of : own_) {
    const std::byte* from = gradients(memory, of);
    auto* values = reinterpret_cast<double*>(memory.address(Role::kBlockSquares, of.flat, AccessMode::kReadsAndWrites));
    if (!all && !of.is_added) continue;
    const int64_t blocks = of.count / kBlockElements;
    const auto add = enqueue(from, of.count, values);
    const double* on_host = mirrors ? mirror_.as<double>() : values;
    if (mirrors) {
      device_.kernels().copy(reduce, mirror_.as<double>(), values, blocks * static_cast<int64_t>(sizeof(double)));
    }
    reduce.run([add, on_host, blocks] { add(std::span(on_host, static_cast<std::size_t>(blocks))); });
  }
}

std::optional<double> ExactNorm::sum_of_squares(Stream& reduce, const StepMemory& memory, Label label) {
  const Kernels& kernels = device_.kernels();
  const DType dtype = plan_.policy.precision.gradients;
  Communicator& world = groups_.world().communicator();
  values_.assign(1, 0.0);
  // A gradient that is not finite may exist in one copy only.
  for_block_values(reduce, memory, true, [&](const std::byte* from, int64_t count, double* values) {
    kernels.block_largest(reduce, values, from, dtype, count);
    return [this](std::span<const double> blocks) {
      for (const double largest : blocks) values_[0] = combine(Reduction::kMax, values_[0], largest);
    };
  });
  world.all_reduce(reduce, values_, Reduction::kMax, label);
  reduce.synchronize();
  const double largest = values_[0];
  if (!std::isfinite(largest)) return std::nullopt;
  if (largest == 0) return 0.0;

  int exponent = 0;
  std::frexp(largest * largest, &exponent);
  Sum total = 0;
  for (int digit = 0; digit < 2; ++digit) {
    Sum sum = 0;
    for_block_values(reduce, memory, false, [&](const std::byte* from, int64_t count, double* values) {
      kernels.block_fixed_squares(reduce, values, {from, dtype, count, std::ldexp(1.0, -exponent), digit});
      return [&sum](std::span<const double> blocks) {
        for (const double block : blocks) sum += static_cast<uint64_t>(block);
      };
    });
    reduce.synchronize();
    total = (total << kDigitBits) + sum;
  }
  values_.resize(kDigits);
  set_digits(values_, total);
  world.all_reduce(reduce, values_, Reduction::kSum, label);
  reduce.synchronize();
  return value_of(values_, exponent - 2 * kDigitBits);
}

}  // namespace aliquot
