#pragma once
// Sums over NCCL in an order of our own.

#include <optional>
#include <vector>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// Where one part per rank lies: part r at `base + r * stride_bytes`.
struct StridedParts {
  std::byte* base = nullptr;
  int64_t stride_bytes = 0;
};

/// The first `size_bytes` of part p of rank r's `from` become those of part r of rank p's `to`.
void exchange_parts(NcclHandle& handle, cudaStream_t stream, StridedParts from, StridedParts to, int64_t size_bytes,
                    const CollectiveCall& call);

/// See Communicator::transfer().
void transfer_runs(NcclHandle& handle, Stream& stream, const Transfers& what, const CollectiveCall& call);

/// Reduce-scatters whose bits are those of every other world: each rank is sent its part by all, and adds them itself in
/// the aligned tree, in fp32, factor and norm in the same pass. The same bytes on the wire as a ring moves, but no help from
/// switches that add. 16-bit parts always go this way, because NCCL's rings round them at every hop, and whether it takes a
/// kernel that does not is its own choice. Goes through a scratch buffer, piece by piece, a piece
/// being whole blocks, so that the buffer's size changes no bit.
class TreeReduceScatter {
 public:
  static constexpr std::size_t kMaxSources = 256;  // of one kernel; a power of two, so that groups are subtrees

  explicit TreeReduceScatter(NcclHandle& handle) : handle_(handle), last_use_(handle.device().ordinal()) {}

  void reduce_scatter(Stream& stream, const ReduceScatter& what, const CollectiveCall& call);

 private:
  void allocate_scratch();

  NcclHandle& handle_;
  Buffer scratch_;      // one stride a rank
  CudaEvent last_use_;  // of the scratch, on any lane
  int64_t stride_bytes_ = 0;
  std::vector<const std::byte*> received_parts_;  // where each rank's piece arrives
  std::vector<std::byte*> partial_sums_;  // where groups of ranks are added, if there are more than a kernel takes
};

}  // namespace aliquot
