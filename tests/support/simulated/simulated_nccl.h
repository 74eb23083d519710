#pragma once
// Functions that inject failures into the simulated NCCL, and that return what it recorded. They concern the rank of
// the calling thread.

#include <vector>

namespace aliquot::simulated {

/// Lets the next ncclMemAlloc() of this thread fail, as NCCL's own does with NCCL_CUMEM_ENABLE=0.
void fail_next_nccl_allocation();

/// The number of registrations that this thread has made and not yet removed.
struct NcclRegistrations {
  int windows = 0, buffers = 0;
  friend bool operator==(const NcclRegistrations&, const NcclRegistrations&) = default;
};
NcclRegistrations nccl_registrations();

/// The configuration of a communicator.
struct NcclConfiguration {
  int blocking = 1, min_thread_blocks = 0, max_thread_blocks = 0, thread_block_policy = 0;
  friend bool operator==(const NcclConfiguration&, const NcclConfiguration&) = default;
};
/// The configurations of all communicators that this thread has made since the last call.
std::vector<NcclConfiguration> take_nccl_configurations();

}  // namespace aliquot::simulated
