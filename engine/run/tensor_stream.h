#pragma once
// Streaming of sharded tensors to all ranks.

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

/// Receives consecutive elements of a tensor in its dtype. `first` is the index of the first element.
using ElementsCallback = std::function<void(int64_t first, std::span<const std::byte> elements)>;

/// Sends all elements of sharded tensors to every rank of a group, in chunks. Adds `staging_bytes` to the ledger while
/// it exists. Collective and blocking. Used between steps, from the rank's own thread. The group and the ledger must
/// outlive it.
class TensorStream {
 public:
  TensorStream(Communicator& ranks, Ledger& ledger, int64_t staging_bytes);

  /// Calls `take` with consecutive chunks of the tensor. `what` describes the purpose, such as "reading h.0.weight". If
  /// the purposes of ranks differ, throws UsageError on all ranks.
  void run(std::string_view what, const StateTensor& tensor, const ElementsCallback& take);

 private:
  static std::string packed(std::string bytes, const StateTensor& tensor, int64_t begin, int64_t end);

  Communicator& ranks_;
  Booking booking_;
  int64_t chunk_bytes_;
  std::vector<std::byte> chunk_;
};

}  // namespace aliquot
