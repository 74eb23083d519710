#include "sharding/gpu_ranks.h"

#include <fmt/format.h>
#include <vector>

#include "sharding/comm/direct_communicator.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/world_internal.h"

namespace aliquot {

bool use_gpus(const WorldOptions& options) {
  if (options.device == DeviceChoice::kHost || options.kind == WorldChoice::kMpi) return false;
  const bool required = options.device == DeviceChoice::kCuda || options.kind == WorldChoice::kNccl;
  if (cuda_device_count() > 0) return true;
  if (required) make_cuda_device(0);  // throws UnavailableError with the reason
  return false;
}

bool agree_on_gpus(Bootstrap& bootstrap, const std::function<bool()>& use_gpus) {
  const auto answers = gather_or_throw(bootstrap, [&] { return std::string(use_gpus() ? "with" : "without"); });
  std::vector<int> with, without;
  for (int r = 0; r < bootstrap.rank_count(); ++r)
    (answers[r] == "with" ? with : without).push_back(bootstrap.global_rank(r));
  if (!with.empty() && !without.empty()) {
    throw UsageError(fmt::format(
        "all ranks must compute on the same kind of device, but there is a GPU for rank {} and none for rank {}: start "
        "the ranks on nodes that all have GPUs, or set WorldOptions::device to host",
        fmt::join(with, ", "), fmt::join(without, ", ")));
  }
  return !with.empty();
}

int gpu_ordinal_for(int index_on_node) { return index_on_node % cuda_device_count(); }

std::unique_ptr<Communicator> make_gpu_threads_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                            const WorldOptions& options) {
  const int rank_count = bootstrap->rank_count();
  Topology topology = threads_topology(rank_count);
  for (int r = 0; r < rank_count; ++r) topology.gpu_of_rank[r] = gpu_ordinal_for(r);
  const bool one_each = rank_count > 1 && rank_count <= cuda_device_count();
  if (options.kind == WorldChoice::kNccl || (options.kind == WorldChoice::kAuto && one_each)) {
    NcclSetup setup{.bootstrap = std::move(bootstrap),
                    .topology = std::move(topology),
                    .make_node_memory = make_heap_node_memory,
                    .options = options.nccl,
                    .timeout_seconds = options.timeout_seconds};
    return make_nccl_communicator(device, std::move(setup));
  }
  return make_direct_communicator(device, std::move(bootstrap), std::move(topology),
                                  cuda_direct_transport(options.timeout_seconds));
}

}  // namespace aliquot
