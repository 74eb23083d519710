// The simulated NCCL for thread ranks on simulated GPUs. As in NCCL, collectives wait in their streams for all ranks,
// those of one communicator run one after another, sums are computed in the order of a ring, and calls return
// ncclInProgress at first.
#include "tests/support/simulated/simulated_nccl.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/simulated/simulated_cuda.h"

namespace {

/// The source and target rank of a message, and its number among the messages from this source to this target.
struct MessageKey {
  int source, target;
  uint64_t number;
  auto operator<=>(const MessageKey&) const = default;
};

/// A message of this rank to or from a peer.
struct Transfer {
  int peer;
  void* data;
  std::size_t size_bytes;
};

struct Message {
  const void* data = nullptr;
  std::size_t size_bytes = 0;
  bool taken = false;
};

/// The input of one rank to a collective.
struct Part {
  const void* from = nullptr;
};

/// One collective. Each rank arrives with its input, reads the inputs of the others and waits until all have finished.
struct CollectiveState {
  std::vector<Part> parts;
  int arrived_count = 0, done_count = 0;
};

/// One symmetric window.
struct WindowState {
  int arrived_count = 0;
  std::set<std::size_t> sizes;  // the sizes that the arrived ranks passed
};

struct World {
  explicit World(int count) : rank_count(count) {}
  const int rank_count;
  std::mutex mutex;
  std::condition_variable changed;
  int joined_count = 0;
  bool aborted = false;
  std::map<uint64_t, CollectiveState> collectives;
  std::map<MessageKey, Message> messages;
  // The keys of the next two maps contain the index of the split. The maps hold the color and key of each rank, and the
  // new world of each color.
  std::map<uint64_t, std::map<int, std::pair<int, int>>> split_requests;
  std::map<std::pair<uint64_t, int>, std::shared_ptr<World>> split_worlds;
  std::map<uint64_t, WindowState> windows;
};

std::mutex worlds_mutex;
std::map<uint64_t, std::shared_ptr<World>> worlds;
uint64_t world_count = 0;

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank;
  uint64_t issued_count = 0, split_count = 0, window_count = 0;
  std::map<int, uint64_t> sent_count = {}, received_count = {};  // how many messages to and from each peer
  int polls_in_progress = 0;
  // How many operations were enqueued, and how many of them have finished. The world's mutex protects both.
  uint64_t enqueued_count = 0, finished_count = 0;
  /// Calls that may run, or run again: those that were not enqueued yet, and those of graphs.
  std::atomic<int> referenced_count{0};
};

namespace {

struct Grouped {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> sends, receives;
};
thread_local bool grouping = false;
thread_local Grouped grouped;

thread_local bool next_allocation_fails = false;
thread_local aliquot::simulated::NcclRegistrations registrations;
thread_local std::vector<aliquot::simulated::NcclConfiguration> configurations;

/// Work of a communicator. It runs while the world's mutex is locked.
using Work = std::function<void(std::unique_lock<std::mutex>&)>;

/// Enqueues work on the stream. The work starts when earlier work of the communicator has finished, on any stream.
/// `prepare` returns the work. It is called now or, if the stream captures, in each launch of the graph.
ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, std::function<Work()> prepare) {
  comm->polls_in_progress = 3;
  ++comm->referenced_count;
  const std::shared_ptr<ncclComm> reference(comm, [](ncclComm_t of) { --of->referenced_count; });
  aliquot::simulated::launch_prepared(stream, [comm, reference, prepare = std::move(prepare)] {
    const auto world = comm->world;
    const auto enqueued = [&] {
      const std::lock_guard lock(world->mutex);
      return comm->enqueued_count++;
    };
    return [comm, world, turn = enqueued(), work = prepare()] {
      std::unique_lock lock(world->mutex);
      world->changed.wait(lock, [&] { return comm->finished_count == turn; });
      work(lock);
      ++comm->finished_count;
      world->changed.notify_all();
    };
  });
  return ncclInProgress;
}

/// Enqueues a collective on the stream. The stream waits until all ranks have arrived, runs `finish(collective)`, and
/// waits until all ranks have finished.
ncclResult_t enqueue_collective(ncclComm_t comm, cudaStream_t stream, Part part,
                                std::function<void(CollectiveState&)> finish) {
  return enqueue(comm, stream, [=, finish = std::move(finish)]() -> Work {
    const uint64_t number = comm->issued_count++;
    return [=](std::unique_lock<std::mutex>& lock) {
      const auto world = comm->world;
      CollectiveState& collective = world->collectives[number];
      collective.parts.resize(static_cast<std::size_t>(world->rank_count));
      collective.parts[static_cast<std::size_t>(comm->rank)] = part;
      ++collective.arrived_count;
      world->changed.notify_all();
      world->changed.wait(lock, [&] { return world->aborted || collective.arrived_count == world->rank_count; });
      if (collective.arrived_count == world->rank_count) {
        lock.unlock();
        finish(collective);
        lock.lock();
        ++collective.done_count;
        world->changed.notify_all();
        world->changed.wait(lock, [&] { return world->aborted || collective.done_count == world->rank_count; });
      }
    };
  });
}

/// Sends and receives the messages of a group, whose keys are `sent` and `received`.
void transfer(World& world, const Grouped& group, const std::vector<MessageKey>& sent,
              const std::vector<MessageKey>& received, std::unique_lock<std::mutex>& lock) {
  for (std::size_t i = 0; i < sent.size(); ++i)
    world.messages[sent[i]] = {group.sends[i].data, group.sends[i].size_bytes};
  world.changed.notify_all();
  for (std::size_t i = 0; i < received.size(); ++i) {
    const auto has_come = [&] { return world.messages.contains(received[i]); };
    world.changed.wait(lock, [&] { return world.aborted || has_come(); });
    if (!has_come()) return;
    Message& message = world.messages[received[i]];
    const Transfer& receive = group.receives[i];
    if (message.size_bytes != receive.size_bytes) std::abort();
    std::memcpy(receive.data, message.data, receive.size_bytes);
    message.taken = true;
    world.changed.notify_all();
  }
  for (const MessageKey& key : sent) {
    world.changed.wait(lock, [&] { return world.aborted || world.messages[key].taken; });
    world.messages.erase(key);
  }
}

std::shared_ptr<World> world_of(const ncclUniqueId& id, int rank_count) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  const std::lock_guard lock(worlds_mutex);
  auto& world = worlds[number];
  if (world == nullptr) world = std::make_shared<World>(rank_count);
  return world;
}

ncclComm_t join(std::shared_ptr<World> world, int rank, const ncclConfig_t* config) {
  if (config != nullptr)
    configurations.push_back({config->blocking, config->minCTAs, config->maxCTAs, config->CTAPolicy});
  auto* comm = new ncclComm{std::move(world), rank};
  const std::lock_guard lock(comm->world->mutex);
  ++comm->world->joined_count;
  return comm;
}

}  // namespace

void aliquot::simulated::fail_next_nccl_allocation() { next_allocation_fails = true; }
aliquot::simulated::NcclRegistrations aliquot::simulated::nccl_registrations() { return registrations; }
std::vector<aliquot::simulated::NcclConfiguration> aliquot::simulated::take_nccl_configurations() {
  return std::exchange(configurations, {});
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "error of the simulated NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(worlds_mutex);
  std::memset(id, 0, sizeof(*id));
  const uint64_t number = ++world_count;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = join(world_of(id, rank_count), rank, config);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(comm->world->mutex);
  const bool formed = comm->world->joined_count >= comm->world->rank_count;
  *state = formed && --comm->polls_in_progress <= 0 ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* new_comm, ncclConfig_t* config) {
  World& parent = *comm->world;
  const uint64_t number = comm->split_count++;
  std::unique_lock lock(parent.mutex);
  auto& requests = parent.split_requests[number];
  requests[comm->rank] = {color, key};
  parent.changed.notify_all();
  parent.changed.wait(lock, [&] { return static_cast<int>(requests.size()) == parent.rank_count; });
  int rank = 0, rank_count = 0;
  for (const auto& [other, request] : requests) {
    if (request.first != color) continue;
    ++rank_count;
    if (request.second < key || (request.second == key && other < comm->rank)) ++rank;
  }
  auto& world = parent.split_worlds[{number, color}];
  if (world == nullptr) world = std::make_shared<World>(rank_count);
  *new_comm = join(world, rank, config);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->polls_in_progress = 3;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  // NCCL waits until no graph has a call of the communicator. So it would wait forever for a graph that the program
  // destroys later.
  for (int i = 0; comm->referenced_count > 0; ++i) {
    if (i == 5000) {
      std::fprintf(stderr, "simulated NCCL: a communicator is destroyed while a graph uses it\n");
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    // Work of the last collective may still be running.
    std::unique_lock lock(comm->world->mutex);
    comm->world->changed.wait(lock, [comm] { return comm->finished_count == comm->enqueued_count; });
  }
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->world->mutex);
    comm->world->aborted = true;
    comm->world->changed.notify_all();
  }
  return ncclCommDestroy(comm);
}

ncclResult_t ncclMemAlloc(void** data, std::size_t size_bytes) {
  if (std::exchange(next_allocation_fails, false)) return ncclUnhandledCudaError;
  return cudaMalloc(data, (size_bytes + 4095) / 4096 * 4096) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* data) { return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }
/// Waits for all ranks of the communicator, as NCCL does. Fails if one does not register, for example because it waits
/// for the ranks of another communicator. Also fails on all ranks if the sizes of the ranks differ.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, std::size_t size_bytes, ncclWindow_t* window, int) {
  {
    World& world = *comm->world;
    std::unique_lock lock(world.mutex);
    WindowState& state = world.windows[comm->window_count++];
    ++state.arrived_count;
    state.sizes.insert(size_bytes);
    world.changed.notify_all();
    const auto complete = [&] { return state.arrived_count == world.rank_count; };
    if (!world.changed.wait_for(lock, std::chrono::seconds(30), complete)) return ncclInternalError;
    if (state.sizes.size() > 1) return ncclInvalidArgument;
  }
  comm->polls_in_progress = 3;
  // NCCL windows are unavailable on some machines. To test this, worlds with an odd number of ranks have no windows.
  *window = comm->world->rank_count % 2 == 0 ? static_cast<ncclWindow_t>(data) : nullptr;
  if (*window != nullptr) ++registrations.windows;
  return ncclInProgress;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  --registrations.windows;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void* data, std::size_t, void** handle) {
  *handle = data;
  ++registrations.buffers;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void*) {
  --registrations.buffers;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const std::size_t size_bytes = type == ncclFloat64 ? count * 8 : count;
  Part part;
  part.from = from;
  return enqueue_collective(comm, stream, part, [=](CollectiveState& collective) {
    for (std::size_t r = 0; r < collective.parts.size(); ++r) {
      void* place = static_cast<char*>(to) + r * size_bytes;
      if (place != collective.parts[r].from) std::memcpy(place, collective.parts[r].from, size_bytes);
    }
  });
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  Part part;
  part.from = from;
  return enqueue_collective(comm, stream, part, [=](CollectiveState& collective) {
    if (comm->rank != root) std::memcpy(to, collective.parts[static_cast<std::size_t>(root)].from, count);
  });
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  Part part;
  part.from = from;
  return enqueue_collective(comm, stream, part, [=](CollectiveState& collective) {
    const std::size_t ranks = collective.parts.size(), own = static_cast<std::size_t>(comm->rank);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (std::size_t step = 1; step <= ranks; ++step) {
        sum += static_cast<const float*>(collective.parts[(own + step) % ranks].from)[own * count + i];
      }
      static_cast<float*>(to)[i] = sum;
    }
  });
}

ncclResult_t ncclGroupStart() {
  grouping = true;
  grouped = {};
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!grouping) return ncclInvalidUsage;
  grouped.comm = comm;
  grouped.stream = stream;
  grouped.sends.push_back({peer, const_cast<void*>(data), count});
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (!grouping) return ncclInvalidUsage;
  grouped.comm = comm;
  grouped.stream = stream;
  grouped.receives.push_back({peer, data, count});
  return ncclSuccess;
}
/// Each rank waits only for its peers. Ranks that neither send nor receive need not call this function.
ncclResult_t ncclGroupEnd() {
  grouping = false;
  ncclComm_t comm = grouped.comm;
  if (comm == nullptr) return ncclSuccess;
  return enqueue(comm, grouped.stream, [comm, group = grouped]() -> Work {
    std::vector<MessageKey> sent, received;
    for (const Transfer& send : group.sends) sent.push_back({comm->rank, send.peer, comm->sent_count[send.peer]++});
    for (const Transfer& receive : group.receives)
      received.push_back({receive.peer, comm->rank, comm->received_count[receive.peer]++});
    return [=](std::unique_lock<std::mutex>& lock) { transfer(*comm->world, group, sent, received, lock); };
  });
}
