#pragma once
// A copy of the state that a rank saves, so that training may modify the original.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/system/booking.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Returns the size of a copy of all pieces that this rank saves, which excludes pieces marked as copies.
int64_t snapshot_bytes(const State& state);

/// A reusable buffer for copies of a state. The constructor allocates and touches the memory and records it as staging.
/// Not thread-safe.
class Snapshot {
 public:
  /// Throws UnavailableError if the memory cannot be allocated. If `ledger` is not null, it must outlive the snapshot.
  Snapshot(int64_t capacity_bytes, Ledger* ledger);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Copies the pieces that a save would write, through their PieceAccess if they have one. Throws UsageError if the
  /// state is larger than the capacity. Exceptions of the PieceAccess propagate. After an exception the copy is
  /// invalid.
  void take(const State& state);
  /// Returns the copy. It has the tensors and scalars of the original, with the pieces in host memory. Valid until the
  /// next take().
  const State& state() const { return state_; }

 private:
  struct FreeDeleter {
    void operator()(std::byte* memory) const;
  };

  int64_t capacity_bytes_;
  std::unique_ptr<Booking> booking_;
  std::unique_ptr<std::byte, FreeDeleter> memory_;
  State state_;
};

}  // namespace aliquot
#pragma GCC visibility pop
