#include "sharding/world.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <thread>

#include "kernels/shared_counter.h"
#include "sharding/direct_communicator.h"
#include "sharding/exchange_threads.h"

namespace aliquot {
namespace {

std::unique_ptr<Device> make_device(const WorldOptions& options, int rank, int rank_count) {
  if (options.make_device) return options.make_device(rank);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return make_host_device(options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / rank_count));
}

World make_threads_world(const std::shared_ptr<ThreadsHub>& hub, int rank, int rank_count,
                         const WorldOptions& options) {
  auto device = make_device(options, rank, rank_count);
  DirectParts parts = host_direct_parts(options.timeout_seconds);
  parts.name = "threads";
  parts.make_node_memory = make_heap_node_memory;
  auto communicator =
      make_direct_communicator(*device, make_threads_exchange(hub, rank), Topology::one_host(rank_count), parts);
  return World(std::move(device), std::move(communicator));
}

/// The first failure of any rank; the others only report that they were told to leave.
class FirstFailure {
 public:
  void keep(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

std::string reason(int rank, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return fmt::format("rank {} failed: {}", rank, error.what());
  } catch (...) {
    return fmt::format("rank {} failed", rank);
  }
}

}  // namespace

void World::threads(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options) {
  if (rank_count < 1) throw UsageError(fmt::format("a world needs at least one rank, not {}", rank_count));
  if (rank_count > static_cast<int>(std::thread::hardware_concurrency())) SharedCounter::set_spin_nanoseconds(0);
  const auto hub = make_threads_hub(rank_count, options.timeout_seconds);
  FirstFailure failure;
  const auto run_rank = [&](int rank) {
    std::optional<World> world;
    try {
      world.emplace(make_threads_world(hub, rank, rank_count, options));
      body(*world);
    } catch (...) {
      failure.keep(std::current_exception());
      const std::string why = reason(rank, std::current_exception());
      if (world) world->communicator().abort(why);
      abort(*hub, why);
    }
  };
  std::vector<std::thread> ranks;
  for (int r = 1; r < rank_count; ++r) ranks.emplace_back(run_rank, r);
  run_rank(0);
  for (auto& rank : ranks) rank.join();
  failure.rethrow();
}

}  // namespace aliquot
