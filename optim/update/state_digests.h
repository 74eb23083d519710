#pragma once
// Digests of the blocks of training state, which an update compares before it changes a block and computes afterwards.

#include <array>
#include <atomic>
#include <functional>
#include <optional>

#include "optim/update/update.h"

namespace aliquot {

/// The parts of the training state that have digests of their own. kParameters: the values that the model reads. All
/// arrays of the optimizer state share one digest for each block.
enum class StatePart : uint8_t { kParameters, kMaster, kOptimizer };
inline constexpr int kStatePartCount = 3;

/// A block whose digest is not that of its contents. `block` counts blocks of 256 elements from the start of the shard.
struct StateDifference {
  StatePart part;
  int64_t block;

  friend bool operator==(const StateDifference&, const StateDifference&) = default;
};

/// The first difference that kernels of a GPU have found.
struct FoundDifference {
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long step = kNone;            // reported_step of the first update or comparison with a difference
  unsigned long long block_and_part = kNone;  // block * kStatePartCount + part, the smallest one of that step

  bool exists() const { return step != kNone; }
  StateDifference difference() const {
    return {static_cast<StatePart>(block_and_part % kStatePartCount),
            static_cast<int64_t>(block_and_part / kStatePartCount)};
  }
};

struct StateCheck {
  /// For each StatePart, one digest for each block of the shard. Blocks without elements have none. Null: the part is
  /// not checked. In memory of the stream's device.
  std::array<uint64_t*, kStatePartCount> digests{};
  /// Hosts only. Called with the first difference of an update or a comparison. Must throw.
  std::function<void(const StateDifference&, int64_t reported_step)> on_difference;
  /// Hosts only. Receives the time that all threads spend on digests; may be null.
  std::atomic<int64_t>* nanoseconds = nullptr;
  /// GPUs only. In pinned host memory. Kernels store differences here, and the caller reads them when the stream is
  /// idle.
  FoundDifference* found = nullptr;
};

/// The arrays of StatePart::kParameters and kMaster, and the sizes of their elements.
struct StateArrays {
  const void* parameters = nullptr;  // the working copy, or the fp32 master if there is none
  const void* master = nullptr;      // the part of the master that is not in the working copy; null if there is none
  int64_t parameter_bytes = 0, master_bytes = 0;
};
StateArrays state_arrays(const Master& master);

/// Computes the digests of elements [begin, end) of the shard, on the calling thread. Both must be multiples of
/// kBlockElements or the end of the shard. `args.check` must be set. Every division into ranges and every instruction
/// set gives the same digests.
void record_digests(const UpdateArgs& args, int64_t begin, int64_t end);
/// Compares the digests of the same elements. Returns the first difference, by block and then by part.
std::optional<StateDifference> find_difference(const UpdateArgs& args, int64_t begin, int64_t end);

}  // namespace aliquot
