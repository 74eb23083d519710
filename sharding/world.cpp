#include "sharding/world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "kernels/system/deadlock_watch.h"
#include "kernels/system/shared_counter.h"
#include "kernels/system/start_thread.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/bootstrap_threads.h"
#include "sharding/comm/direct_communicator.h"
#include "sharding/cores.h"
#include "sharding/flight/flight_recorder.h"
#include "sharding/flight/recording_communicator.h"
#include "sharding/gpu_ranks.h"
#include "sharding/launcher.h"
#include "sharding/world_internal.h"

namespace aliquot {
namespace {

/// What the ranks of a world of threads share.
struct ThreadsWorld {
  ThreadsWorld(int count, const WorldOptions& options)
      : rank_count(count), store(make_threads_bootstrap_store(count, options.timeout_seconds)) {}

  int rank_count;
  std::shared_ptr<ThreadsBootstrapStore> store;
  /// On hosts. One copy, because the copies of thousands of ranks would have thousands of elements each.
  std::shared_ptr<const Topology> topology = std::make_shared<const Topology>(threads_topology(rank_count));
};

World make_unrecorded_threads_world(const ThreadsWorld& ranks, int rank, const WorldOptions& options) {
  const int cores = allowed_core_count();
  const bool on_gpu = !options.make_device && use_gpus(options);
  auto device =
      on_gpu ? make_cuda_device(gpu_ordinal_for(rank)) : make_rank_device(options, rank, cores / ranks.rank_count);
  auto bootstrap = make_threads_bootstrap(ranks.store, rank);
  if (device->kind() == DeviceKind::kCuda) {
    auto communicator = make_gpu_threads_communicator(*device, std::move(bootstrap), options);
    return World(std::move(device), std::move(communicator));
  }
  DirectTransport transport = host_direct_transport(options.timeout_seconds);
  transport.name = "threads";
  transport.make_node_memory = make_heap_node_memory;
  auto communicator = make_direct_communicator(*device, std::move(bootstrap), ranks.topology, transport);
  return World(std::move(device), std::move(communicator));
}

World make_threads_world(const ThreadsWorld& ranks, int rank, const WorldOptions& options) {
  return finish_world_setup(make_unrecorded_threads_world(ranks, rank, options), options, RanksAre::kThreads);
}

/// Collects the results of the ranks in a world of threads. Keeps only the first failure, because it causes the
/// failures of other ranks.
class ThreadRankResults {
 public:
  explicit ThreadRankResults(int rank_count) : returned_(static_cast<std::size_t>(rank_count), false) {}

  /// Returns whether this is the first failure.
  bool record_failure(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = std::move(failure);
    return true;
  }
  void mark_returned_rank(int rank) {
    const std::lock_guard lock(mutex_);
    returned_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }
  /// Called by the rank that failed first. Waits until all other ranks have returned. After a time limit, calls
  /// on_stuck with a list of the ranks that have not returned.
  void wait_for_other_ranks(int own_rank, const WorldOptions& options) {
    constexpr double kMaxSeconds = 10;
    const std::chrono::duration<double> wait_limit(std::min(options.timeout_seconds + 1, kMaxSeconds));
    std::unique_lock lock(mutex_);
    returned_[static_cast<std::size_t>(own_rank)] = true;
    const auto all_returned = [this] { return std::ranges::find(returned_, false) == returned_.end(); };
    if (changed_.wait_for(lock, wait_limit, all_returned)) return;
    std::string missing;
    for (std::size_t r = 0; r < returned_.size(); ++r) {
      if (!returned_[r]) missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", r);
    }
    lock.unlock();
    options.on_stuck(failure_, missing);
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> returned_;
  std::exception_ptr failure_;  // the first failure; null if there is none
};

}  // namespace

std::unique_ptr<Device> make_rank_device(const WorldOptions& options, int rank, int share) {
  if (options.make_device) return options.make_device(rank);
  return make_host_device(options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, share));
}

WorldOptions validated_options(WorldOptions options) {
  constexpr double kMaxSeconds = 1e9;
  if (!(options.timeout_seconds > 0.0))
    throw UsageError(fmt::format("WorldOptions::timeout_seconds is {}: expected more than 0", options.timeout_seconds));
  options.timeout_seconds = std::min(options.timeout_seconds, kMaxSeconds);
  if (options.kind == WorldChoice::kNccl && options.device == DeviceChoice::kHost)
    throw UsageError("WorldOptions::kind is nccl, which requires GPUs: set WorldOptions::device to cuda or auto");
  if (options.kind == WorldChoice::kMpi && options.device == DeviceChoice::kCuda)
    throw UsageError(
        "WorldOptions::kind is mpi, which supports hosts only: with GPUs, set WorldOptions::kind to nccl or auto");
  return options;
}

World finish_world_setup(World made, const WorldOptions& options, RanksAre ranks_are) {
  const char* elsewhere = std::getenv("ALIQUOT_FLIGHT_DIR");
  const std::string directory = elsewhere != nullptr ? elsewhere : options.flight_directory;
  FlightWorld name = made.rank() == 0 ? FlightWorld::reserve(directory, process_number()) : FlightWorld();
  // This process does not know whether ranks of other processes write records.
  if (ranks_are == RanksAre::kProcesses) name.keep();
  // Rank 0 decides the identifier of the run, of kRunLength characters, and the name of the world.
  constexpr std::size_t kRunLength = 16;
  std::string own;
  if (made.rank() == 0)
    own = fmt::format("{:08x}{:08x}{}", std::random_device()(), std::random_device()(), name.name());
  const std::string first = made.communicator().gather_objects(own).front();
  if (made.rank() != 0) name = FlightWorld::join(directory, first.substr(kRunLength));
  auto flight = std::make_shared<FlightRecorder>(made.rank(), made.rank_count(), first.substr(0, kRunLength), directory,
                                                 std::move(name));
  World world = World::with_flight_recorder(std::move(made), std::move(flight));
  world.device().on_failed_work([&ranks = world.communicator()] { ranks.abort(failure_reason(ranks.rank())); });
  return world;
}

World World::with_flight_recorder(World world, std::shared_ptr<FlightRecorder> flight) {
  const bool timed = world.device_->kind() == DeviceKind::kHost;
  world.communicator_ = record_collectives(std::move(world.communicator_), flight, timed, "world");
  world.flight_ = std::move(flight);
  return world;
}

// Captures the flight record first, so that it describes this failure even if a signal handler writes the file. Then
// aborts the other ranks, which wait for this one. Writes the file last, because the file system may hang. With MPI,
// the exit of another rank ends this process after kExitGraceSeconds, by a signal whose handler completes the file.
void abort_and_write_flight_record(World& world) noexcept {
  const std::string why = failure_text(world.rank());
  if (world.flight() != nullptr) world.flight()->capture(why);
  world.communicator().abort(failure_reason(world.rank()));
  if (world.flight() != nullptr) world.flight()->write(why);
}

Topology threads_topology(int rank_count) {
  Topology topology = Topology::one_host(rank_count);
  // The ranks are threads. Each may run on any core that the process may use.
  topology.numa_of_rank.assign(static_cast<std::size_t>(rank_count), numa_node_of(allowed_cores()));
  if (const int on_each = ranks_per_node_from_environment(); on_each > 0) {
    for (int r = 0; r < rank_count; ++r) topology.node_of_rank[r] = r / on_each;
  }
  return topology;
}

World make_single_rank_world(const WorldOptions& options) {
  return make_threads_world(ThreadsWorld(1, options), 0, options);
}

std::string failure_text(int rank) {
  try {
    throw;
  } catch (const CommunicationError& error) {
    return error.what();  // the message already names the rank
  } catch (const std::exception& error) {
    return fmt::format("rank {} failed: {}", rank, error.what());
  } catch (...) {
    return fmt::format("rank {} failed", rank);
  }
}

std::string failure_reason(int rank) {
  ExitCode code = ExitCode::kFault;
  try {
    throw;
  } catch (const Error& error) {
    code = error.exit_code();
  } catch (const std::bad_alloc&) {
    code = ExitCode::kUnavailable;
  } catch (...) {  // the code of other exceptions is kFault
  }
  return abort_reason(code, failure_text(rank));
}

void World::sum(std::span<double> values) {
  if (values.size() > static_cast<std::size_t>(Communicator::kSmallCount)) {
    throw UsageError(
        fmt::format("World::sum() of {} values: expected at most {}", values.size(), Communicator::kSmallCount));
  }
  const auto stream = device_->make_stream(Lane::kCompute);
  communicator_->all_reduce(*stream, values, Reduction::kSum, {"World::sum"});
  stream->synchronize();
}

void World::threads(int rank_count, const std::function<void(World&)>& body, const WorldOptions& given) {
  const WorldOptions options = validated_options(given);
  if (rank_count < 1) throw UsageError(fmt::format("a world needs at least one rank: rank_count is {}", rank_count));
  if (!body) throw UsageError("a world needs a function for its ranks to run");
  if (rank_count > allowed_core_count()) SharedCounter::set_spin_nanoseconds(0);
  const ThreadsWorld world_ranks(rank_count, options);
  ThreadsBootstrapStore& store = *world_ranks.store;
  ThreadRankResults results(rank_count);
  RankThreads threads(rank_count);
  const bool only_these_threads = !options.make_device && !use_gpus(options);
  const auto run_rank = [&](int rank) {
    const RankThreads::Own own_thread(only_these_threads ? &threads : nullptr, rank);
    std::optional<World> world;
    try {
      world.emplace(make_threads_world(world_ranks, rank, options));
      body(*world);
      mark_returned(store, rank);
    } catch (...) {
      const bool is_first = results.record_failure(std::current_exception());
      abort(store, failure_reason(rank));
      if (world) abort_and_write_flight_record(*world);
      if (is_first && options.on_stuck) results.wait_for_other_ranks(rank, options);
    }
    results.mark_returned_rank(rank);
  };
  std::vector<std::thread> ranks;
  ranks.reserve(static_cast<std::size_t>(rank_count) - 1);
  try {
    for (int r = 1; r < rank_count; ++r)
      ranks.push_back(start_thread(fmt::format("rank {} of {}", r, rank_count), [&run_rank, r] { run_rank(r); }));
    run_rank(0);
  } catch (...) {  // a thread could not be started: abort the ranks that wait for the rank of this thread
    results.record_failure(std::current_exception());
    abort(store, failure_reason(0));
  }
  for (auto& rank : ranks) rank.join();
  results.rethrow();
}

}  // namespace aliquot
