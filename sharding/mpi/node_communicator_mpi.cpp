#include "sharding/mpi/node_communicator_mpi.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/reduction.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/groups.h"
#include "sharding/mpi/communicator_mpi.h"
#include "sharding/mpi/node_memory_mpi.h"

namespace aliquot {
namespace {

// If a rank of another node is missing, only a rank that waits for that node can name it. So that this rank reports
// first, ranks that wait for a rank of their own node time out this much later.
constexpr double kGraceSeconds = 0.5;

// Owns a buffer in the node's memory. After a failure the memory is leaked, because messages may still arrive in it.
struct NodeBuffer final : SymmetricBuffer::Backing {
  explicit NodeBuffer(SymmetricBuffer owned) : buffer(std::make_unique<SymmetricBuffer>(std::move(owned))) {}
  ~NodeBuffer() override {
    if (mpi_failed()) (void)buffer.release();
  }
  std::unique_ptr<SymmetricBuffer> buffer;
};

/// This rank's part of the boards that make_signals() creates, in bytes, for the ledger.
int64_t own_board_bytes(const MpiBootstrap& node) {
  return 2 * Board::size_bytes(node.rank_count()) / node.rank_count();
}

std::byte* address_of(SymmetricRange range) { return range.buffer->local() + range.offset_bytes; }

}  // namespace

NodeCommunicator::NodeCommunicator(Device& device, std::unique_ptr<MpiBootstrap> world, Topology topology,
                                   std::string_view group)
    : device_(device),
      world_(std::move(world)),
      topology_(std::move(topology)),
      routes_(topology_, world_->rank()),
      node_(world_->split_mpi(routes_.node, world_->rank())),
      node_memory_(make_process_node_memory(*node_)),
      peer_memory_(make_host_peer_memory(*node_memory_, device.ledger(), *node_)) {
  std::vector<Board> boards;
  entry_signals_ = make_signals(world_->timeout_seconds() + kGraceSeconds, group, &boards);
  phase_signals_ = make_signals(world_->timeout_seconds() + 2 * kGraceSeconds, group, &boards);
  entry_board_.emplace(boards.front());
  bridge_ = std::make_unique<AbortBridge>(world_->aborts(), node_->channels(), std::move(boards));
  const MpiLane::Options lane_options{.world = world_->comm(),
                                      .aborts = &world_->aborts(),
                                      .abort = [this](std::string_view why) { abort(why); },
                                      .timeout_seconds = world_->timeout_seconds(),
                                      .global_ranks = global_ranks_of(*world_),
                                      .group = std::string(group)};
  for (auto& lane_state : lane_states_) lane_state = std::make_unique<LaneState>(lane_options, topology_, routes_);
  const int64_t all_reduce_table_bytes =
      int64_t{kLaneCount} * rank_count() * kSmallCount * static_cast<int64_t>(sizeof(double));
  all_reduce_table_ = node_memory_->map(all_reduce_table_bytes, "all-reduce");
  booked_memory_.emplace(device.ledger(), all_reduce_table_bytes / node_->rank_count() + own_board_bytes(*node_),
                         Category::kArena, "all-reduce and signals");
}

NodeCommunicator::~NodeCommunicator() {
  // After a failure, leak the memory of the lanes, because abandoned messages may still arrive in it.
  for (auto& lane_state : lane_states_) {
    if (lane_state->busy()) mark_mpi_failed();
    if (mpi_failed()) (void)lane_state.release();
  }
  if (mpi_failed()) (void)all_reduce_table_.release();
}

std::unique_ptr<Signals> NodeCommunicator::make_signals(double timeout_seconds, std::string_view group,
                                                        std::vector<Board>* boards) {
  auto memory = node_memory_->map(Board::size_bytes(node_->rank_count()), "signals");
  boards->emplace_back(memory->writable, node_->rank_count());
  return make_host_signals(std::move(memory), {.rank = node_->rank(),
                                               .rank_count = node_->rank_count(),
                                               .timeout_seconds = timeout_seconds,
                                               .global_ranks = global_ranks_of(*node_),
                                               .group = std::string(group)});
}

void NodeCommunicator::arrive_at_rendezvous() { entry_signals_->arrive_at_rendezvous(collective_purpose().what); }

std::vector<std::string> NodeCommunicator::gather_objects(std::string_view own) {
  arrive_at_rendezvous();
  return world_->all_gather(own);
}

std::string NodeCommunicator::describe() const {
  return fmt::format("mpi, {}, {} inside a node", topology_.describe(), node_memory_->describe());
}

SymmetricBuffer NodeCommunicator::allocate(int64_t own_bytes, RankSizes sizes, Category category,
                                           std::string_view owner) {
  arrive_at_rendezvous();
  // If sizes must be equal, first the ranks of each node compare them, then all ranks do.
  SymmetricBuffer mine;
  const auto size_of_ranks = gather_or_throw(*world_, [&] {
    mine = peer_memory_->allocate(own_bytes, sizes, category, owner);
    return std::to_string(own_bytes);
  });
  if (sizes == RankSizes::kEqual) expect_same_sizes(*world_, size_of_ranks, owner);
  std::vector<const std::byte*> peers(topology_.node_of_rank.size(), nullptr);
  for (std::size_t i = 0; i < routes_.members.size(); ++i) peers[routes_.members[i]] = mine.peer(static_cast<int>(i));
  std::byte* local = mine.local();
  return SymmetricBuffer(std::make_unique<NodeBuffer>(std::move(mine)), local, std::move(peers), own_bytes);
}

Collective NodeCommunicator::arrive_and_wait(Stream& stream, const OperationDescription& what, Label label) {
  LaneState& lane_state = this->lane_state(stream);
  const Collective collective{stream.lane(), ++lane_state.issued_count, what, label};
  as_host_stream(stream).run([&lane_state, &board = *entry_board_, place = node_->rank(), collective] {
    // Post this before waiting for other nodes, so that ranks of this node do not report this rank as missing.
    board.lane(place, collective.lane).waiting_for_other_nodes.store(collective.sequence, std::memory_order_relaxed);
    lane_state.lane.match_other_nodes(collective);
  });
  entry_signals_->arrive(stream, collective.sequence, what, label);
  entry_signals_->await_arrivals(stream, collective.sequence, what, label);
  return collective;
}

void NodeCommunicator::arrive_and_wait_on_node(Stream& stream, const Collective& collective) {
  const uint64_t place = ++lane_state(stream).phase_count;
  phase_signals_->arrive(stream, place, collective.what, collective.label);
  phase_signals_->await_arrivals(stream, place, collective.what, collective.label);
}

void NodeCommunicator::all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes,
                                  Label label) {
  const Collective collective = arrive_and_wait(stream, describe_all_gather(to, from, part_bytes, label), label);
  gather(stream, collective, to, from, part_bytes);
}

void NodeCommunicator::all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) {
  const Collective collective = arrive_and_wait(stream, describe_all_gather_in_place(whole, part_bytes, label), label);
  gather(stream, collective, whole, {}, part_bytes);
}

// If `from` has no buffer, the part of every rank is already at its position in `to`.
void NodeCommunicator::gather(Stream& stream, const Collective& collective, SymmetricRange to, SymmetricRange from,
                              int64_t part_bytes) {
  const bool in_place = from.buffer == nullptr;
  std::byte* gathered = address_of(to);
  const std::byte* own = in_place ? gathered + rank() * part_bytes : address_of(from);
  as_host_stream(stream).run([this, &lane_state = lane_state(stream), move = PartMove{gathered, own, part_bytes},
                              collective] { gather_from_nodes(lane_state, move, collective); });
  arrive_and_wait_on_node(stream, collective);
  for (const int member : routes_.members) {
    if (!in_place) copy(stream, gathered + member * part_bytes, from, member, 0, part_bytes);
    if (in_place && member != rank())
      copy(stream, gathered + member * part_bytes, to, member, member * part_bytes, part_bytes);
  }
  for (const int source : routes_.remote_ranks) {
    const int proxy = routes_.proxy(source, routes_.node);
    if (proxy != rank()) copy(stream, gathered + source * part_bytes, to, proxy, source * part_bytes, part_bytes);
  }
  // Wait until the other ranks have copied the received parts, because the caller may reuse the buffer afterwards.
  arrive_and_wait_on_node(stream, collective);
}

void NodeCommunicator::gather_from_nodes(LaneState& lane_state, const PartMove& move, const Collective& collective) {
  for (const int source : routes_.served_ranks) {
    lane_state.messages.receive(lane_state.lane.envelope_for(source), move.to + source * move.part_bytes,
                                move.part_bytes);
  }
  for (const int proxy : routes_.proxies)
    lane_state.messages.send(lane_state.lane.envelope_for(proxy), move.from, move.part_bytes);
  lane_state.lane.wait_for(lane_state.messages, collective);
}

void NodeCommunicator::reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) {
  LaneState& lane_state = this->lane_state(stream);
  expect_staging(what);
  const Collective collective = arrive_and_wait(stream, describe_reduce_scatter(what, label), label);
  // Two tasks, because the captures of a task have a limited size.
  HostStream& worker = as_host_stream(stream);
  worker.run([&lane_state, what] { lane_state.reducer.prepare(what); });
  worker.run([&lane_state, &worker, collective] { lane_state.reducer.run(worker.pool(), collective); });
}

void NodeCommunicator::all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes,
                                  Label label) {
  const Collective collective = arrive_and_wait(stream, describe_all_to_all(to, from, part_bytes, label), label);
  const PartMove move{address_of(to), address_of(from), part_bytes};
  as_host_stream(stream).run([this, &lane_state = lane_state(stream), move, collective] {
    all_to_all_with_nodes(lane_state, move, collective);
  });
  for (const int member : routes_.members) {
    copy(stream, move.to + member * part_bytes, from, member, rank() * part_bytes, part_bytes);
  }
}

void NodeCommunicator::all_to_all_with_nodes(LaneState& lane_state, const PartMove& move,
                                             const Collective& collective) {
  for (const int other : routes_.remote_ranks) {
    lane_state.messages.receive(lane_state.lane.envelope_for(other), move.to + other * move.part_bytes,
                                move.part_bytes);
  }
  for (const int other : routes_.remote_ranks) {
    lane_state.messages.send(lane_state.lane.envelope_for(other), move.from + other * move.part_bytes, move.part_bytes);
  }
  lane_state.lane.wait_for(lane_state.messages, collective);
}

void NodeCommunicator::transfer(Stream& stream, const Transfers& what, Label label) {
  const Collective collective = arrive_and_wait(stream, describe_transfer(what, label), label);
  HostStream& worker = as_host_stream(stream);
  // Two tasks, because the captures of a task have a limited size.
  worker.run([&transfers = lane_state(stream).transfers, what] { transfers = what; });
  worker.run([this, &lane_state = lane_state(stream), collective] {
    transfer_with_nodes(lane_state, lane_state.transfers, collective);
  });
  for (const Transfer& one : what.own) {
    if (one.target == rank() && routes_.node_of_rank[one.source] == routes_.node)
      copy(stream, address_of(what.to) + one.to_bytes, what.from, one.source, one.from_bytes, one.size_bytes);
  }
}

/// Sends directly from rank to rank, without proxies, because only one rank needs the data.
void NodeCommunicator::transfer_with_nodes(LaneState& lane_state, const Transfers& what, const Collective& collective) {
  const auto remote = [this](int other) { return routes_.node_of_rank[other] != routes_.node; };
  for (const Transfer& one : what.own) {
    if (one.target == rank() && remote(one.source) && one.size_bytes > 0)
      lane_state.messages.receive(lane_state.lane.envelope_for(one.source), address_of(what.to) + one.to_bytes,
                                  one.size_bytes);
  }
  for (const Transfer& one : what.own) {
    if (one.source == rank() && remote(one.target) && one.size_bytes > 0)
      lane_state.messages.send(lane_state.lane.envelope_for(one.target), address_of(what.from) + one.from_bytes,
                               one.size_bytes);
  }
  lane_state.lane.wait_for(lane_state.messages, collective);
}

void NodeCommunicator::broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) {
  const Collective collective = arrive_and_wait(stream, describe_broadcast(range, size_bytes, root, label), label);
  // The rank of this node from which the other ranks of the node copy the data.
  const int first = routes_.proxy(root, routes_.node);
  if (first == rank()) {
    const PartMove move{address_of(range), address_of(range), size_bytes};
    as_host_stream(stream).run([this, &lane_state = lane_state(stream), move, root, collective] {
      broadcast_between_nodes(lane_state, move, root, collective);
    });
  }
  arrive_and_wait_on_node(stream, collective);
  if (first != rank()) copy(stream, address_of(range), range, first, 0, size_bytes);
  arrive_and_wait_on_node(stream, collective);
}

// Broadcasts in a binomial tree over the nodes, which are numbered from the root's node. Node v receives the data from
// the node whose number is v with its lowest set bit cleared.
void NodeCommunicator::broadcast_between_nodes(LaneState& lane_state, const PartMove& move, int root,
                                               const Collective& collective) {
  const int nodes = routes_.node_count();
  const int root_node = routes_.node_of_rank[root];
  const int own = (routes_.node - root_node + nodes) % nodes;
  const auto rank_at = [&](int place) { return routes_.proxy(root, (place + root_node) % nodes); };
  const int lowest = own & -own;
  if (own != 0) {
    lane_state.messages.receive(lane_state.lane.envelope_for(rank_at(own - lowest)), move.to, move.part_bytes);
    lane_state.lane.wait_for(lane_state.messages, collective);
  }
  for (int bit = 1; (own == 0 || bit < lowest) && own + bit < nodes; bit *= 2) {
    lane_state.messages.send(lane_state.lane.envelope_for(rank_at(own + bit)), move.from, move.part_bytes);
  }
  lane_state.lane.wait_for(lane_state.messages, collective);
}

void NodeCommunicator::all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) {
  const auto count = static_cast<int64_t>(values.size());
  if (count > kSmallCount)
    throw UsageError(fmt::format("all_reduce of {} values: expected at most {}", count, kSmallCount));
  HostStream& worker = as_host_stream(stream);
  double* all = all_reduce_operands(stream.lane());
  const PartMove move{reinterpret_cast<std::byte*>(all), reinterpret_cast<std::byte*>(all + rank() * count),
                      count * static_cast<int64_t>(sizeof(double))};
  worker.run([values, own = all + rank() * count] { std::copy(values.begin(), values.end(), own); });
  const Collective collective = arrive_and_wait(stream, describe_all_reduce(count, reduction, label), label);
  worker.run(
      [this, &lane_state = lane_state(stream), move, collective] { gather_from_nodes(lane_state, move, collective); });
  arrive_and_wait_on_node(stream, collective);
  worker.run([values, all, count, reduction, ranks = rank_count()] {
    reduce_in_tree(values, ranks, reduction, [&](int r) { return all + r * count; });
  });
  // The next all-reduce overwrites the values, so wait until all ranks of the node have read them.
  arrive_and_wait_on_node(stream, collective);
}

double* NodeCommunicator::all_reduce_operands(Lane lane) const {
  return reinterpret_cast<double*>(all_reduce_table_->writable) +
         static_cast<int64_t>(lane) * rank_count() * kSmallCount;
}

void NodeCommunicator::barrier(Stream& stream, Label label) { arrive_and_wait(stream, describe_barrier(label), label); }

std::unique_ptr<Communicator> NodeCommunicator::split(int color, int key, std::string_view name) {
  arrive_at_rendezvous();
  const RankGroup group = agree_on_group(*world_, color, key);
  return make_mpi_communicator(device_, world_->split_mpi(color, key), topology_of_group(topology_, group.members),
                               name);
}

void NodeCommunicator::copy(Stream& stream, std::byte* to, SymmetricRange from, int peer, int64_t skip_bytes,
                            int64_t size_bytes) {
  if (size_bytes == 0) return;
  device_.kernels().copy(stream, to, from.buffer->peer(peer) + from.offset_bytes + skip_bytes, size_bytes);
}

}  // namespace aliquot
