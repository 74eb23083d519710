#pragma once
// Functions that inject failures into the simulated NCCL, and that return what it recorded. They concern the rank of
// the calling thread.

namespace aliquot::simulated {

/// Lets the next ncclMemAlloc() of this thread fail, as NCCL's own does with NCCL_CUMEM_ENABLE=0.
void fail_next_nccl_allocation();

/// The number of registrations that this thread has made and not yet removed.
struct NcclRegistrations {
  int windows = 0, buffers = 0;
  friend bool operator==(const NcclRegistrations&, const NcclRegistrations&) = default;
};
NcclRegistrations nccl_registrations();

}  // namespace aliquot::simulated
