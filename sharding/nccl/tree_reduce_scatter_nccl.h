#pragma once
// Reduce-scatter that transfers data with NCCL and adds in tree order.

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

/// Performs a reduce-scatter with the same bits as in all other worlds. Each rank receives its part from all ranks and
/// adds the received parts in tree order in fp32. The same pass applies the factor and computes the norm. This sends
/// as many bytes as a ring algorithm, but cannot use reductions in network switches. 16-bit data is always added in
/// this way, because NCCL may round it after each addition. Parts are received in pieces in `what.staging`, which
/// `cut` describes. Pieces consist of complete blocks, so their length does not affect the bits. A single rank needs
/// no staging memory.
void reduce_scatter_in_tree(NcclHandle& handle, Stream& stream, const ReduceScatter& what, const ReduceStaging& cut,
                            const CollectiveCall& call);

}  // namespace aliquot
