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
using ElementsCallback = std::function<void(int64_t first, std::span<const std::byte> elements)>;

/// Hands every rank of a group whole tensors, chunk by chunk. Books `staging_bytes` in the ledger while it lives. Collective;
/// blocks. Used between steps, from the rank's own thread. Group and ledger must outlive it.
class TensorStream {
 public:
  TensorStream(Communicator& ranks, Ledger& ledger, int64_t staging_bytes);

  /// `what` names the purpose ("reading h.0.weight"). Throws UsageError on all ranks, naming two of them, if they give
  /// different purposes.
  void run(std::string_view what, const StateTensor& tensor, const ElementsCallback& take);

 private:
  static std::string packed(std::string bytes, const StateTensor& tensor, int64_t begin, int64_t end);

  Communicator& ranks_;
  Booking booking_;
  int64_t chunk_bytes_;
  std::vector<std::byte> chunk_;
};

}  // namespace aliquot
