#pragma once
// Assignment of GPUs to ranks, and the communicator for ranks that are threads and compute on GPUs.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/world.h"

namespace aliquot {

/// Returns whether this rank computes on a GPU. With DeviceChoice::kAuto and WorldChoice::kAuto, it does if this
/// machine has a GPU. Throws UnavailableError if the options require GPUs and the machine has none.
bool use_gpus(const WorldOptions& options);

/// Calls `use_gpus` on every rank and returns the common result. Collective; blocks. Throws UsageError, naming the
/// ranks, if the results differ. If `use_gpus` throws on a rank, all ranks throw, as in run_on_all_or_throw().
bool agree_on_gpus(Bootstrap& bootstrap, const std::function<bool()>& use_gpus);

/// Returns the index of the GPU for the rank with the given index on its node. If the node has fewer GPUs than ranks,
/// GPUs are assigned round-robin.
int gpu_ordinal_for(int index_on_node);

/// Returns the communicator for ranks that are threads. gpu_ordinal_for() must have chosen their GPUs. The communicator
/// uses NCCL if the options require it, or if the choice is automatic and each of several ranks has its own GPU.
/// Otherwise, kernels read the memory of the other ranks directly. Collective.
std::unique_ptr<Communicator> make_gpu_threads_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                            const WorldOptions& options);

}  // namespace aliquot
