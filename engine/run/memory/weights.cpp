#include "engine/run/memory/weights.h"

#include <algorithm>

#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

const HostLoops& loops() { return host_loops(best_isa()); }

}  // namespace

/// The StatePiece::bytes of a piece is an address in the working copy. The index of an element is computed from the
/// distance of this address to the start of the working copy.
class Weights::Access final : public PieceAccess {
 public:
  Access(const Weights& weights, int32_t flat) : weights_(weights), flat_(flat) {}
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
    weights_.read(flat_, element(piece) + first, count, reinterpret_cast<float*>(to));
  }
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
    weights_.write(flat_, element(piece) + first, count, reinterpret_cast<const float*>(from));
  }

 private:
  int64_t element(const StatePiece& piece) const {
    const int64_t start = weights_.first_rank() * weights_.plan_.flats[flat_].layout.shard_count();
    return start +
           (piece.bytes - weights_.working_copy(flat_, start)) / element_bytes(weights_.plan_.policy.precision.compute);
  }
  const Weights& weights_;
  int32_t flat_;
};

Weights::Weights(const Plan& plan, const StepMemory& memory, const HostView& view, int rank)
    : plan_(plan), memory_(memory), view_(view), rank_(rank), holds_full_parameters_(plan.schedule.zero_stage < 3) {
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f)
    accesses_.push_back(std::make_unique<Access>(*this, f));
}

Weights::~Weights() = default;

const PieceAccess* Weights::access(int32_t flat) const {
  const std::byte* at = memory_.address_between_steps(Role::kParameters, flat);
  return plan_.policy.precision.has_master() || !view_.is_host_addressable(at) ? accesses_[flat].get() : nullptr;
}

std::byte* Weights::working_copy(int32_t flat, int64_t first) const {
  const int64_t start = first_rank() * plan_.flats[flat].layout.shard_count();
  return memory_.address_between_steps(Role::kParameters, flat) +
         (first - start) * element_bytes(plan_.policy.precision.compute);
}

Weights::OwnedRange Weights::owned_range(int32_t flat, int64_t first, int64_t count) const {
  const int64_t shard = plan_.flats[flat].layout.shard_count();
  const bool all = plan_.schedule.zero_stage == 0;
  const int64_t begin = all ? 0 : rank_ * shard, end = all ? plan_.flats[flat].layout.flat_count() : begin + shard;
  if (!plan_.flats[flat].trainable || !plan_.policy.precision.has_master()) return {first, first, 0};
  const int64_t from = std::clamp(first, begin, end), to = std::clamp(first + count, begin, end);
  if (from >= to) return {first, first, 0};
  return {from, to, from - begin};
}

void Weights::read(int32_t flat, int64_t first, int64_t count, float* to) const {
  const OwnedRange own = owned_range(flat, first, count);
  read_working(flat, first, own.first - first, to);
  read_working(flat, own.last, first + count - own.last, to + (own.last - first));
  if (own.last > own.first) read_master(flat, own, to + (own.first - first));
}

void Weights::write(int32_t flat, int64_t first, int64_t count, const float* from) const {
  write_working(flat, first, count, from);
  const OwnedRange own = owned_range(flat, first, count);
  if (own.last > own.first) write_master(flat, own, from + (own.first - first));
}

void Weights::read_master(int32_t flat, const OwnedRange& own, float* to) const {
  const int64_t count = own.last - own.first;
  const std::byte* master =
      memory_.address_between_steps(Role::kMaster, flat) + own.master_first * plan_.policy.precision.master_bytes();
  if (!plan_.policy.precision.split()) return view_.fetch(to, master, count * 4);
  std::vector<uint16_t> high(static_cast<std::size_t>(count));
  std::vector<int16_t> low(static_cast<std::size_t>(count));
  view_.fetch(high.data(), working_copy(flat, own.first), count * 2);
  view_.fetch(low.data(), master, count * 2);
  loops().merge(to, high.data(), low.data(), count);
}

/// Call after write_working(), which writes the high half of a split master.
void Weights::write_master(int32_t flat, const OwnedRange& own, const float* from) const {
  const int64_t count = own.last - own.first;
  std::byte* master =
      memory_.address_between_steps(Role::kMaster, flat) + own.master_first * plan_.policy.precision.master_bytes();
  if (!plan_.policy.precision.split()) return view_.store(master, from, count * 4);
  std::vector<uint16_t> high(static_cast<std::size_t>(count));
  std::vector<int16_t> low(static_cast<std::size_t>(count));
  loops().split(high.data(), low.data(), from, count);
  view_.store(master, low.data(), count * 2);
}

void Weights::read_working(int32_t flat, int64_t first, int64_t count, float* to) const {
  if (count <= 0) return;
  const DType dtype = plan_.policy.precision.compute;
  if (dtype == DType::kFloat32) return view_.fetch(to, working_copy(flat, first), count * 4);
  std::vector<uint16_t> narrow(static_cast<std::size_t>(count));
  view_.fetch(narrow.data(), working_copy(flat, first), count * 2);
  loops().cast(to, DType::kFloat32, narrow.data(), dtype, count);
}

/// Rounds as all casts from a master do: to the nearest value, with ties away from zero for bf16 and to even for fp16.
void Weights::write_working(int32_t flat, int64_t first, int64_t count, const float* from) const {
  if (count <= 0) return;
  const DType dtype = plan_.policy.precision.compute;
  if (dtype == DType::kFloat32) return view_.store(working_copy(flat, first), from, count * 4);
  std::vector<uint16_t> narrow(static_cast<std::size_t>(count));
  if (dtype == DType::kBFloat16) {
    loops().split(narrow.data(), nullptr, from, count);
  } else {
    loops().cast(narrow.data(), dtype, from, DType::kFloat32, count);
  }
  view_.store(working_copy(flat, first), narrow.data(), count * 2);
}

Master Weights::master(int32_t flat) const {
  const Precision& precision = plan_.policy.precision;
  const bool all = plan_.schedule.zero_stage == 0;
  memory_.declare_access(Role::kParameters, flat, AccessMode::kReadsAndWrites);
  std::byte* copy = all ? memory_.full_parameters(flat) : memory_.own_shard(flat);
  if (!precision.has_master()) return {.whole = reinterpret_cast<float*>(copy)};
  std::byte* master = memory_.address(Role::kMaster, flat, AccessMode::kReadsAndWrites);
  if (precision.split()) return {.high = reinterpret_cast<uint16_t*>(copy), .low = reinterpret_cast<int16_t*>(master)};
  return {.whole = reinterpret_cast<float*>(master), .copy = copy, .copy_dtype = precision.compute};
}

}  // namespace aliquot
