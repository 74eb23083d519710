#pragma once
// Thread-ranks on GPUs: who gets which, and what moves their bytes. In a build without CUDA there are none.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/world.h"

namespace aliquot {

/// Whether ranks compute on GPUs: what the options say, or, if they leave it open, whether there is one. Throws
/// UnavailableError when GPUs are asked for and there are none, and UsageError when NCCL is asked for on hosts or MPI on
/// GPUs.
bool use_gpus(const WorldOptions& options);

/// What all ranks say, each asked by `use_gpus`: a world computes on GPUs or on hosts, not on both. Collective and
/// blocking. Throws as run_on_all_or_throw() where `use_gpus` threw; UsageError, naming the ranks on either side, if nodes differ.
bool agree_on_gpus(Bootstrap& bootstrap, const std::function<bool()>& use_gpus);

/// The number of the GPU for the `index`-th rank of a node: one after the other, and again from the first.
int gpu_ordinal_for(int index_on_node);

/// For thread-ranks with devices made by gpu_ordinal_for(): NCCL if asked for, or if left open and several ranks have a GPU each;
/// else kernels that read the peers' memory, on one GPU or on several that reach each other. Collective.
std::unique_ptr<Communicator> make_gpu_threads_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                            const WorldOptions& options);

}  // namespace aliquot
