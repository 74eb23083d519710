#pragma once
// A copy of what a rank saves, so that training may change the original.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/system/booking.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Bytes that a copy of the rank's own pieces takes: those that are copies of other ranks' are not saved.
int64_t snapshot_bytes(const State& state);

/// Memory of its own, touched and booked as staging once, and filled as often as wished. One thread at a time.
class Snapshot {
 public:
  /// Throws UnavailableError when the memory is not to be had. `ledger`, if given, outlives it.
  Snapshot(int64_t capacity_bytes, Ledger* ledger);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Copies, reaching each piece as a save would. Throws UsageError when the state has grown past the capacity, and what a
  /// PieceAccess throws; the copy is then worth nothing.
  void take(const State& state);
  /// The copy: the same tensors and scalars, in plain host memory. Valid until the next take().
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
