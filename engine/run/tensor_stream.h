#pragma once
// A tensor of a state over all ranks, from the first element to the last.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/schedule.h"
#include "kernels/system/booking.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// Elements of a tensor in its dtype, the first of them number `first`.
using TakeElements = std::function<void(int64_t first, std::span<const std::byte> elements)>;

/// Hands every rank of a group the whole of one tensor after another, in chunks. Stages a bounded number of bytes, booked while
/// it lives. Collective; blocks. Used between steps, from the rank's own thread. Group and ledger must outlive it.
class TensorStream {
 public:
  TensorStream(Communicator& ranks, Ledger& ledger, int64_t staging_bytes);

  /// `what` says what for ("reading h.0.weight"). Throws UsageError on all ranks, naming two, where it is not the same on
  /// all of them.
  void run(std::string_view what, const StateTensor& tensor, const TakeElements& take);

 private:
  static std::string packed(std::string bytes, const StateTensor& tensor, int64_t begin, int64_t end);

  Communicator& ranks_;
  Booking booking_;
  int64_t chunk_bytes_;
  std::vector<std::byte> chunk_;
};

}  // namespace aliquot
