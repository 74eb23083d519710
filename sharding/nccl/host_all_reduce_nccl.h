#pragma once
// All-reduce of values in host memory with NCCL.

#include <span>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// Performs all-reduces of values in host memory, in stream order. NCCL gathers the values and the host reduces them in
/// tree order, so the bits are the same as in all other worlds.
class HostAllReduce {
 public:
  explicit HostAllReduce(NcclHandle& handle);

  /// `handle` belongs to the same ranks as that of the constructor.
  void all_reduce(NcclHandle& handle, Stream& stream, std::span<double> values, Reduction reduction,
                  const CollectiveCall& call);
  void barrier(NcclHandle& handle, Stream& stream, const CollectiveCall& call);

 private:
  double* pinned(Lane lane) const;
  double* on_gpu(Lane lane) const;
  void gather(NcclHandle& handle, Stream& stream, int64_t count, const CollectiveCall& call);

  int rank_, rank_count_;
  // Both buffers have space for the values of all ranks, for each lane. In the pinned memory, a copy of this rank's
  // values precedes the values of all ranks.
  PinnedMemory pinned_;
  GpuMemory gpu_;
};

}  // namespace aliquot
