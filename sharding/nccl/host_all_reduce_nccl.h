#pragma once
// Small numbers of the host, over NCCL.

#include <span>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// All-reduces of numbers in host memory, in the order of a stream: gathered by NCCL, combined on the host in the aligned
/// tree, so with the bits of every other world.
class HostAllReduce {
 public:
  explicit HostAllReduce(NcclHandle& handle);

  void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, const CollectiveCall& call);
  void barrier(Stream& stream, const CollectiveCall& call);

 private:
  double* pinned(Lane lane) const;
  double* on_gpu(Lane lane) const;
  void gather(Stream& stream, int64_t count, const CollectiveCall& call);

  NcclHandle& handle_;
  // Per lane, as a lane is in order, one place a rank; the pinned one has the own numbers before them.
  PinnedMemory pinned_;
  GpuMemory gpu_;
};

}  // namespace aliquot
