#pragma once
// Options for the use of NCCL.

#include <cstdint>

#pragma GCC visibility push(default)
namespace aliquot {

struct NcclOptions {
  /// The number of thread blocks of a collective (minCTAs and maxCTAs of NCCL). 0: NCCL decides.
  ///
  /// The order in which NCCL adds fp32 values depends on its algorithm and channels. To get the same bits in every run,
  /// set this count, and set three variables in the environment of every rank: NCCL_ALGO (for example to Ring),
  /// NCCL_PROTO (for example to Simple) and NCCL_NVLS_ENABLE (to 0).
  int channels = 0;

  /// Whether NCCL gathers with the copy engines of the GPU. Kernels can then use all multiprocessors. NCCL uses copy
  /// engines only inside an NVLink domain, and only for memory that is registered as a symmetric window.
  bool copy_engines = false;

  /// Whether gathers have their own NCCL communicator. NCCL runs the collectives of one communicator one after another.
  /// If gathers and reduces share a communicator, a gather waits for an earlier reduce, and the reduce waits for
  /// backward. A second communicator needs more memory of the GPU.
  bool gather_communicator = true;

  /// Maximum size of a rank's staging memory for the sums of one group. NCCL does not add 16-bit data, or data in tree
  /// order. It sends such data in pieces to this memory, and kernels add it. Transfers of long pieces are faster.
  int64_t staging_bytes = int64_t{64} << 20;
};

}  // namespace aliquot
#pragma GCC visibility pop
