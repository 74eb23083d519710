#pragma once
// Reduce-scatter that transfers data with NCCL and adds in tree order.

#include <optional>
#include <vector>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// One part per rank: part p is at `base + p * stride_bytes`.
struct StridedParts {
  std::byte* base = nullptr;
  int64_t stride_bytes = 0;
  int shift = 0;  // rank r gets part (r + shift) % rank count
};

/// Each rank r sends one part of `from` to each rank p, which stores it as part r of its `to`. `from.shift` selects the
/// part. Only the first `size_bytes` of each part are sent.
void exchange_parts(NcclHandle& handle, cudaStream_t stream, StridedParts from, StridedParts to, int64_t size_bytes,
                    const CollectiveCall& call);

/// See Communicator::transfer().
void transfer_runs(NcclHandle& handle, Stream& stream, const Transfers& what, const CollectiveCall& call);

/// Performs reduce-scatters with the same bits as in all other worlds. Each rank receives its part from all ranks and
/// adds the received parts in tree order in fp32. The same pass applies the factor and computes the norm. This sends as
/// many bytes as a ring algorithm, but cannot use reductions in network switches. 16-bit data always uses this class,
/// because NCCL may round it after each addition. Parts are received in pieces in a scratch buffer. Pieces consist of
/// complete blocks, so the buffer size does not affect the bits.
class TreeReduceScatter {
 public:
  static constexpr std::size_t kMaxSources = 256;  // sources per kernel; a power of two, so that groups are subtrees

  explicit TreeReduceScatter(NcclHandle& handle) : handle_(handle), last_use_(handle.device().ordinal()) {}

  void reduce_scatter(Stream& stream, const ReduceScatter& what, const CollectiveCall& call);

 private:
  void allocate_scratch();

  NcclHandle& handle_;
  Buffer scratch_;      // one received part for each rank, followed by the partial sums
  CudaEvent last_use_;  // last use of the scratch buffer, on any lane
  int64_t stride_bytes_ = 0;
  std::vector<const std::byte*> received_parts_;  // the piece of each rank, in the scratch buffer
  std::vector<std::byte*> partial_sums_;          // sums of groups of ranks, if there are more than kMaxSources ranks
};

}  // namespace aliquot
