#pragma once
// The communicator for ranks on several nodes. It uses shared memory inside a node and MPI messages between nodes.

#include <array>
#include <memory>
#include <optional>

#include "kernels/device/host_stream.h"
#include "kernels/system/booking.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/signals.h"
#include "sharding/memory/node_memory.h"
#include "sharding/memory/peer_memory.h"
#include "sharding/mpi/abort_bridge_mpi.h"
#include "sharding/mpi/bootstrap_mpi.h"
#include "sharding/mpi/lane_mpi.h"
#include "sharding/mpi/node_routes.h"
#include "sharding/mpi/reduce_mpi.h"

namespace aliquot {

/// See make_mpi_communicator(). A collective has four phases: (1) exchange headers with other nodes; (2) synchronize
/// the node; (3) transfer data between nodes; (4) synchronize the node, copy received data from its other ranks, and
/// synchronize again. Phase 4 is omitted if ranks use only data that they received themselves.
class NodeCommunicator final : public Communicator {
 public:
  NodeCommunicator(Device& device, std::unique_ptr<MpiBootstrap> world, Topology topology, std::string_view group);
  ~NodeCommunicator() override;

  int rank() const override { return world_->rank(); }
  int rank_count() const override { return world_->rank_count(); }
  const Topology& topology() const override { return topology_; }
  std::string describe() const override;

  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override;
  std::optional<SharedRange> allocate_shared(int64_t, int64_t, Category, std::string_view) override { return {}; }

  void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override;
  void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) override;
  void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) override;
  void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override;
  void transfer(Stream& stream, const Transfers& what, Label label) override;
  void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) override;
  void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) override;
  void barrier(Stream& stream, Label label) override;

  void publish(Stream& stream, uint64_t progress) override { entry_signals_->publish(stream, progress); }
  void await(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    entry_signals_->await_progress(stream, lane, progress, label);
  }

  std::vector<std::string> gather_objects(std::string_view own) override;
  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override;
  void abort(std::string_view why) noexcept override { bridge_->abort(why); }

 private:
  /// The state of one lane.
  struct LaneState {
    LaneState(MpiLane::Options lane_options, const Topology& topology, const NodeRoutes& routes)
        : lane(std::move(lane_options), routes), reducer(topology, routes, lane) {}
    bool busy() const { return lane.busy() || !messages.empty() || reducer.busy(); }
    MpiLane lane;
    MpiRequests messages;
    /// How many collectives this rank has issued, and how many times it has called arrive_and_wait_on_node().
    uint64_t issued_count = 0, phase_count = 0;
    NodeReducer reducer;
    Transfers transfers;  // arguments of the transfer in progress
  };
  struct PartMove {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t part_bytes = 0;
  };

  std::unique_ptr<Signals> make_signals(double timeout_seconds, std::string_view group, std::vector<Board>* boards);
  /// Every function that gathers through the bootstrap calls this first, so that ranks in a collective can report it.
  void arrive_at_rendezvous();
  double* all_reduce_operands(Lane lane) const;
  LaneState& lane_state(const Stream& stream) { return *lane_states_[static_cast<std::size_t>(stream.lane())]; }
  /// Makes later work on the stream wait until all ranks have arrived at this collective.
  Collective arrive_and_wait(Stream& stream, const OperationDescription& what, Label label);
  /// Makes later work on the stream wait until all ranks of the node have reached this point of the collective.
  void arrive_and_wait_on_node(Stream& stream, const Collective& collective);

  void gather(Stream& stream, const Collective& collective, SymmetricRange to, SymmetricRange from, int64_t part_bytes);
  void gather_from_nodes(LaneState& lane_state, const PartMove& move, const Collective& collective);
  void all_to_all_with_nodes(LaneState& lane_state, const PartMove& move, const Collective& collective);
  void transfer_with_nodes(LaneState& lane_state, const Transfers& what, const Collective& collective);
  void broadcast_between_nodes(LaneState& lane_state, const PartMove& move, int root, const Collective& collective);
  void copy(Stream& stream, std::byte* to, SymmetricRange from, int peer, int64_t skip_bytes, int64_t size_bytes);

  Device& device_;
  std::unique_ptr<MpiBootstrap> world_;
  Topology topology_;
  NodeRoutes routes_;
  std::unique_ptr<MpiBootstrap> node_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::unique_ptr<PeerMemory> peer_memory_;
  std::unique_ptr<Signals> entry_signals_, phase_signals_;
  std::optional<Board> entry_board_;
  std::unique_ptr<AbortBridge> bridge_;
  std::array<std::unique_ptr<LaneState>, kLaneCount> lane_states_;
  std::unique_ptr<NodeMapping> all_reduce_table_;  // for each lane, the values of all ranks; shared by the node
  std::optional<Booking> booked_memory_;           // counts this rank's part of all_reduce_table_ and of the boards
};

}  // namespace aliquot
