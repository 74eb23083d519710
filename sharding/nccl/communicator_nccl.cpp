#include "sharding/nccl/communicator_nccl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <fmt/format.h>
#include <memory>
#include <ranges>
#include <vector>

#include "kernels/elementwise/kernels.h"
#include "sharding/cuda/lane_events_cuda.h"
#include "sharding/groups.h"
#include "sharding/nccl/host_all_reduce_nccl.h"
#include "sharding/nccl/memory_nccl.h"
#include "sharding/nccl/tree_reduce_scatter_nccl.h"
#include "sharding/nccl/watchdog_nccl.h"

namespace aliquot {
namespace {

std::byte* at(SymmetricRange range) { return range.buffer->local() + range.offset_bytes; }

std::size_t to_size(int64_t count) { return static_cast<std::size_t>(count); }

std::vector<Lane> all_lanes() {
  std::vector<Lane> lanes;
  for (int lane = 0; lane < kLaneCount; ++lane) lanes.push_back(static_cast<Lane>(lane));
  return lanes;
}

/// A lane with an NCCL communicator of its own.
struct SeparateLane {
  SeparateLane(NcclHandle& of_lane, Lane lane)
      : handle(of_lane), watchdog(of_lane, std::array{lane, Lane::kCompute}) {}  // graphs run on the compute lane
  NcclHandle& handle;
  NcclWatchdog watchdog;
};

class NcclCommunicator final : public Communicator {
 public:
  /// If `parent` is not null, splits the parent's first NCCL communicator by `color`.
  NcclCommunicator(CudaDevice& device, NcclSetup setup, NcclCommunicator* parent = nullptr, int color = 0)
      : device_(device),
        topology_(setup.topology),
        options_(setup.options),
        timeout_seconds_(setup.timeout_seconds),
        group_(setup.group),
        make_node_memory_(setup.make_node_memory),
        peers_(std::make_shared<NcclPeers>(setup)),
        handles_{parent == nullptr ? std::make_shared<NcclHandle>(device, peers_, options_, timeout_seconds_)
                                   : std::make_shared<NcclHandle>(parent->handle(), peers_, color)},
        watchdog_(handle(), all_lanes()),
        host_all_reduce_(handle()) {
    for (int lane = 0; lane < kLaneCount; ++lane) progress_.emplace_back(device.ordinal());
  }

  /// Closes NCCL before the members are destroyed, because its kernels may still use their memory.
  ~NcclCommunicator() override {
    bool aborts = false;
    for (const auto& handle : std::views::reverse(handles_)) aborts = !handle->close(aborts);
  }

  int rank() const override { return peers_->rank(); }
  int rank_count() const override { return peers_->rank_count(); }
  const Topology& topology() const override { return topology_; }
  std::string describe() const override {
    int version = 0;
    (void)ncclGetVersion(&version);
    return fmt::format("nccl {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                       peers_->has_board() ? ", ranks meet on a board" : "");
  }

  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override {
    return allocate_for_nccl(handles_, own_bytes, sizes, category, owner);
  }
  SymmetricBuffer attach(const SymmetricBuffer& whole, std::span<const int> ranks) override {
    return attach_to_nccl(handles_, whole, ranks);
  }

  /// Returns nullopt, because with NCCL ranks do not read each other's memory directly.
  std::optional<SharedRange> allocate_shared(int64_t, int64_t, Category, std::string_view) override {
    return std::nullopt;
  }

  void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    gather(stream, describe_all_gather(to, from, part_bytes, label), at(to), at(from), label);
  }

  void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) override {
    gather(stream, describe_all_gather_in_place(whole, part_bytes, label), at(whole), at(whole) + rank() * part_bytes,
           label);
  }

  void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) override {
    const bool in_tree = what.in_tree_order || what.shift != 0;
    const bool staged = sum_needs_staging(topology_, in_tree, what.from_dtype, what.to_dtype);
    if (staged) expect_staging(what);
    run(stream, describe_reduce_scatter(what, label), label, [&](const CollectiveCall& call) {
      if (what.part_count == 0) return;
      if (staged || rank_count() == 1) {
        reduce_scatter_in_tree(handle_of(stream), stream, what, reduce_staging(topology_, what.part_count), call);
      } else {
        reduce_scatter_with_nccl(stream, what, call);
      }
    });
  }

  void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    run(stream, describe_all_to_all(to, from, part_bytes, label), label, [&](const CollectiveCall& call) {
      if (part_bytes > 0)
        exchange_parts(handle_of(stream), cuda_stream(stream), {at(from), part_bytes}, {at(to), part_bytes}, part_bytes,
                       call);
    });
  }

  void transfer(Stream& stream, const Transfers& what, Label label) override {
    run(stream, describe_transfer(what, label), label,
        [&](const CollectiveCall& call) { transfer_runs(handle_of(stream), stream, what, call); });
  }

  void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) override {
    run(stream, describe_broadcast(range, size_bytes, root, label), label, [&](const CollectiveCall& call) {
      if (size_bytes == 0) return;
      NcclHandle& handle = handle_of(stream);
      handle.await_result(
          ncclBroadcast(at(range), at(range), to_size(size_bytes), ncclUint8, root, handle.get(), cuda_stream(stream)),
          call.text());
    });
  }

  void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) override {
    if (static_cast<int64_t>(values.size()) > kSmallCount) {
      throw UsageError(fmt::format("all_reduce of {} values: expected at most {}", values.size(), kSmallCount));
    }
    run(stream, describe_all_reduce(static_cast<int64_t>(values.size()), reduction, label), label,
        [&](const CollectiveCall& call) {
          host_all_reduce_.all_reduce(handle_of(stream), stream, values, reduction, call);
        });
  }

  void barrier(Stream& stream, Label label) override {
    run(stream, describe_barrier(label), label,
        [&](const CollectiveCall& call) { host_all_reduce_.barrier(handle_of(stream), stream, call); });
  }

  void publish(Stream& stream, uint64_t progress) override {
    cuda_device(stream).make_current();
    auto& cuda = static_cast<CudaStream&>(stream);
    if (!cuda.is_captured()) progress_[index(stream.lane())].record(cuda, progress);
  }

  void await(Stream& stream, Lane lane, uint64_t progress, Label) override {
    cuda_device(stream).make_current();
    auto& cuda = static_cast<CudaStream&>(stream);
    if (!cuda.is_captured()) progress_[index(lane)].wait(cuda, progress);
  }

  bool can_capture() const override { return true; }

  void begin_graph(Stream& stream, Label label) override {
    const CollectiveCall call = next_call(stream, describe_graph(label), label);
    for (const auto& handle : handles_) handle->throw_if_failed(call.text());
    arrive_and_wait(call, handle());
    for (NcclWatchdog* watchdog : watchdogs()) watchdog->begin(static_cast<CudaStream&>(stream), call);
  }

  void end_graph(Stream& stream) override {
    for (NcclWatchdog* watchdog : watchdogs()) watchdog->end(static_cast<CudaStream&>(stream));
  }

  std::vector<std::string> gather_objects(std::string_view own) override { return peers_->bootstrap().all_gather(own); }

  /// NCCL runs the collectives of one NCCL communicator one after another. So the lane gets its own one.
  void separate_lane(Lane lane) override {
    auto& separate = separate_lanes_[index(lane)];
    if (!options_.gather_communicator || rank_count() == 1 || separate != nullptr) return;
    handles_.push_back(std::make_shared<NcclHandle>(handle(), peers_, 0));
    separate = std::make_unique<SeparateLane>(*handles_.back(), lane);
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override {
    const RankGroup group = agree_on_group(peers_->bootstrap(), color, key);
    NcclSetup setup{.bootstrap = peers_->bootstrap().split(color, key),
                    .topology = topology_of_group(topology_, group.members),
                    .make_node_memory = make_node_memory_,
                    .options = options_,
                    .timeout_seconds = timeout_seconds_,
                    .group = std::string(name)};
    // NCCL requires nonnegative colors. The color of a new group is the rank that its first member has here.
    return std::make_unique<NcclCommunicator>(device_, std::move(setup), this, group.members.front());
  }

  void abort(std::string_view why) noexcept override { peers_->abort(why); }

 private:
  NcclHandle& handle() const { return *handles_.front(); }
  NcclHandle& handle_of(const Stream& stream) const {
    const auto& separate = separate_lanes_[index(stream.lane())];
    return separate != nullptr ? separate->handle : handle();
  }
  static std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }

  void gather(Stream& stream, const OperationDescription& what, std::byte* to, const std::byte* from, Label label) {
    run(stream, what, label, [&](const CollectiveCall& call) {
      if (what.count == 0) return;
      NcclHandle& handle = handle_of(stream);
      handle.await_result(ncclAllGather(from, to, to_size(what.count), ncclUint8, handle.get(), cuda_stream(stream)),
                          call.text());
    });
  }

  /// Runs one collective: waits until all ranks have arrived, and then issues it to NCCL under the watchdog.
  template <typename Issue>
  void run(Stream& stream, const OperationDescription& what, Label label, Issue issue) {
    const CollectiveCall call = next_call(stream, what, label);
    auto& cuda = static_cast<CudaStream&>(stream);
    NcclHandle& handle = handle_of(stream);
    handle.throw_if_failed(call.text());
    arrive_and_wait(call, handle);
    if (cuda.is_captured()) return issue(call);  // begin_graph() watches it
    const auto& separate = separate_lanes_[index(stream.lane())];
    NcclWatchdog& watchdog = separate != nullptr ? separate->watchdog : watchdog_;
    watchdog.begin(cuda, call);
    issue(call);
    watchdog.end(cuda);
  }

  /// Counts a call on the lane of the stream, and makes the GPU of the stream current.
  CollectiveCall next_call(Stream& stream, const OperationDescription& what, Label label) {
    cuda_device(stream).make_current();
    return {what, ++issued_counts_[index(stream.lane())], stream.lane(), label, group_};
  }

  void arrive_and_wait(const CollectiveCall& call, NcclHandle& handle) {
    try {
      peers_->arrive_and_wait(call);
    } catch (const CommunicationError& error) {
      handle.fail(error.what());
    }
  }

  /// The watchdogs of all NCCL communicators of this group.
  std::vector<NcclWatchdog*> watchdogs() {
    std::vector<NcclWatchdog*> all{&watchdog_};
    for (const auto& separate : separate_lanes_) {
      if (separate != nullptr) all.push_back(&separate->watchdog);
    }
    return all;
  }

  /// Adds in an order that NCCL chooses. Then applies the factor and computes the norm in one pass over this rank's
  /// part.
  void reduce_scatter_with_nccl(Stream& stream, const ReduceScatter& what, const CollectiveCall& call) {
    NcclHandle& handle = handle_of(stream);
    handle.await_result(ncclReduceScatter(at(what.from), what.to, to_size(what.part_count), ncclFloat32, ncclSum,
                                          handle.get(), cuda_stream(stream)),
                        call.text());
    if (what.factor == 1.0f && what.block_squares == nullptr) return;
    // The pointer may be a local variable, because sum_tree() of a GPU reads `bases` before it returns.
    const auto* sum = static_cast<const std::byte*>(what.to);
    device_.kernels().sum_tree(stream, {.bases = {&sum, 1},
                                        .to = what.to,
                                        .count = what.part_count,
                                        .factor = what.factor,
                                        .block_squares = what.block_squares});
  }

  CudaDevice& device_;
  Topology topology_;
  NcclOptions options_;
  double timeout_seconds_;
  std::string group_;
  std::function<std::unique_ptr<NodeMemory>(Bootstrap&)> make_node_memory_;
  std::shared_ptr<NcclPeers> peers_;
  std::vector<std::shared_ptr<NcclHandle>> handles_;  // the first one serves all lanes that are not separate
  NcclWatchdog watchdog_;
  std::array<std::unique_ptr<SeparateLane>, kLaneCount> separate_lanes_;  // by lane; null: not separate
  HostAllReduce host_all_reduce_;
  std::deque<LaneEvents> progress_;  // by lane
  std::array<uint64_t, kLaneCount> issued_counts_{};
};

/// Throws a clear error if two ranks use the same GPU. NCCL itself would report only "invalid usage". For tests, ranks
/// with different values of NCCL_HOSTID count as ranks of different nodes and may share a GPU.
void refuse_shared_gpus(CudaDevice& device, const Topology& topology, Bootstrap& bootstrap) {
  std::array<char, 32> bus{};
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.ordinal()), "cudaDeviceGetPCIBusId()");
  const char* host_id = std::getenv("NCCL_HOSTID");
  // If MIG divides a GPU, its parts have the same bus id, but different UUIDs.
  const auto all = bootstrap.all_gather(fmt::format("{} {} {} {}", topology.node_of_rank[bootstrap.rank()],
                                                    host_id == nullptr ? "" : host_id, device.uuid(), bus.data()));
  for (int r = 0; r < bootstrap.rank_count(); ++r) {
    const auto first = std::find(all.begin(), all.end(), all[r]) - all.begin();
    if (first == r) continue;
    throw UnavailableError(
        fmt::format("ranks {} and {} share the GPU {}, but NCCL requires one GPU per rank: start fewer ranks, or set "
                    "WorldOptions::kind to threads",
                    bootstrap.global_rank(static_cast<int>(first)), bootstrap.global_rank(r),
                    all[r].substr(all[r].rfind(' ') + 1)));
  }
}

/// Ranks with different options would make different calls, and wait for one another until the deadline.
void expect_same_options(const NcclOptions& o, Bootstrap& bootstrap) {
  const auto all =
      bootstrap.all_gather(fmt::format("channels {}, copy_engines {}, gather_communicator {}, "
                                       "staging_bytes {}",
                                       o.channels, o.copy_engines, o.gather_communicator, o.staging_bytes));
  for (int r = 1; r < bootstrap.rank_count(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(
        fmt::format("WorldOptions::nccl differs between ranks {} ({}) and {} ({}): pass the same options "
                    "to all ranks",
                    bootstrap.global_rank(0), all[0], bootstrap.global_rank(r), all[r]));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, NcclSetup setup) {
  expect_same_options(setup.options, *setup.bootstrap);
  refuse_shared_gpus(cuda_device(device), setup.topology, *setup.bootstrap);
  setup.topology.over_nccl = true;
  setup.topology.nccl_staging_bytes = setup.options.staging_bytes;
  return std::make_unique<NcclCommunicator>(cuda_device(device), std::move(setup));
}

}  // namespace aliquot
