#include "sharding/mpi/node_communicator_mpi.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "sharding/comm/all_or_none.h"
#include "sharding/comm/reduction.h"
#include "sharding/groups.h"
#include "sharding/mpi/communicator_mpi.h"
#include "sharding/mpi/node_memory_mpi.h"

namespace aliquot {
namespace {

// Whoever misses a rank of another node knows its name; who waits on the node for such a rank lets it speak first.
constexpr double kLaterSeconds = 0.5;

// A node's buffer. After a failure a message may still come, so the memory stays.
struct NodeBuffer final : SymmetricBuffer::Backing {
  explicit NodeBuffer(SymmetricBuffer taken) : buffer(std::make_unique<SymmetricBuffer>(std::move(taken))) {}
  ~NodeBuffer() override {
    if (mpi_failed()) (void)buffer.release();
  }
  std::unique_ptr<SymmetricBuffer> buffer;
};

/// A rank's share of the boards of make_signals().
int64_t own_board_bytes(const MpiExchange& node) {
  return 2 * Board::size_bytes(node.rank_count()) / node.rank_count();
}

std::byte* begin_of(SymmetricRange range) { return range.buffer->local() + range.offset_bytes; }

}  // namespace

NodeCommunicator::NodeCommunicator(Device& device, std::unique_ptr<MpiExchange> world, Topology topology)
    : device_(device),
      world_(std::move(world)),
      topology_(std::move(topology)),
      plan_(topology_, world_->rank()),
      node_(world_->split_mpi(plan_.node, world_->rank())),
      node_memory_(make_process_node_memory(*node_)),
      peer_memory_(make_host_peer_memory(*node_memory_, device.ledger(), *node_)) {
  std::vector<Board> boards;
  entrance_ = make_signals(world_->timeout_seconds() + kLaterSeconds, &boards);
  inside_ = make_signals(world_->timeout_seconds() + 2 * kLaterSeconds, &boards);
  at_entrance_.emplace(boards.front());
  bridge_ = std::make_unique<AbortBridge>(world_->aborts(), node_->channels(), std::move(boards));
  const MpiLane::Parts parts{.world = world_->comm(),
                             .aborts = &world_->aborts(),
                             .abort = [this](std::string_view why) { abort(why); },
                             .timeout_seconds = world_->timeout_seconds(),
                             .names = names_of(*world_)};
  const int64_t staging_places = reduce_staging_places(topology_);
  for (auto& side : sides_) side = std::make_unique<Side>(parts, staging_places, plan_);
  const int64_t numbers_bytes = int64_t{kLaneCount} * rank_count() * kSmallCount * static_cast<int64_t>(sizeof(double));
  numbers_ = node_memory_->map(numbers_bytes, "all-reduce");
  own_memory_.emplace(device.ledger(), numbers_bytes / node_->rank_count() + own_board_bytes(*node_), Category::kArena,
                      "all-reduce and signals");
}

NodeCommunicator::~NodeCommunicator() {
  // Messages given up may still come into the lanes' memory.
  for (auto& side : sides_) {
    if (side->busy()) mark_mpi_failed();
    if (mpi_failed()) (void)side.release();
  }
  if (mpi_failed()) (void)numbers_.release();
}

std::unique_ptr<Signals> NodeCommunicator::make_signals(double timeout_seconds, std::vector<Board>* boards) {
  auto memory = node_memory_->map(Board::size_bytes(node_->rank_count()), "signals");
  boards->emplace_back(memory->writable, node_->rank_count());
  return make_host_signals(std::move(memory), {.rank = node_->rank(),
                                               .rank_count = node_->rank_count(),
                                               .timeout_seconds = timeout_seconds,
                                               .names = names_of(*node_)});
}

std::string NodeCommunicator::describe() const {
  return fmt::format("mpi, {}, {} inside a node", topology_.describe(), node_memory_->describe());
}

SymmetricBuffer NodeCommunicator::allocate(int64_t size_bytes, Category category, std::string_view owner) {
  // Each node agrees for itself, then the nodes do.
  SymmetricBuffer mine;
  const auto sizes = gather_or_throw(*world_, [&] {
    mine = peer_memory_->allocate(size_bytes, category, owner);
    return std::to_string(size_bytes);
  });
  expect_same_sizes(*world_, sizes, owner);
  std::vector<const std::byte*> peers(topology_.node_of_rank.size(), nullptr);
  for (std::size_t i = 0; i < plan_.members.size(); ++i) peers[plan_.members[i]] = mine.peer(static_cast<int>(i));
  std::byte* local = mine.local();
  return SymmetricBuffer(std::make_unique<NodeBuffer>(std::move(mine)), local, std::move(peers), size_bytes);
}

Collective NodeCommunicator::meet(Stream& stream, const OperationDescription& what, Label label) {
  Side& side = this->side(stream);
  const Collective collective{stream.lane(), ++side.issued, what, label};
  host(stream).run([&side, &board = *at_entrance_, place = node_->rank(), collective] {
    // Said before it waits for other nodes, so that its own node does not take it for the missing one.
    board.lane(place, collective.lane).came.store(collective.sequence, std::memory_order_relaxed);
    side.lane.agree(collective);
  });
  entrance_->arrive(stream, collective.sequence, what, label);
  entrance_->await_arrivals(stream, collective.sequence, what, label);
  return collective;
}

void NodeCommunicator::meet_inside(Stream& stream, const Collective& collective) {
  const uint64_t place = ++side(stream).inner;
  inside_->arrive(stream, place, collective.what, collective.label);
  inside_->await_arrivals(stream, place, collective.what, collective.label);
}

void NodeCommunicator::all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes,
                                  Label label) {
  const Collective collective = meet(stream, describe_all_gather(to, from, part_bytes, label), label);
  gather(stream, collective, to, from, part_bytes);
}

void NodeCommunicator::all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) {
  const Collective collective = meet(stream, describe_all_gather_in_place(whole, part_bytes, label), label);
  gather(stream, collective, whole, {}, part_bytes);
}

// `from` has no buffer where every rank's part lies in its place in `to`.
void NodeCommunicator::gather(Stream& stream, const Collective& collective, SymmetricRange to, SymmetricRange from,
                              int64_t part_bytes) {
  const bool in_place = from.buffer == nullptr;
  std::byte* whole = begin_of(to);
  const std::byte* own = in_place ? whole + rank() * part_bytes : begin_of(from);
  host(stream).run([this, &side = side(stream), move = Move{whole, own, part_bytes}, collective] {
    gather_from_nodes(side, move, collective);
  });
  meet_inside(stream, collective);
  for (const int member : plan_.members) {
    if (!in_place) copy(stream, whole + member * part_bytes, from, member, 0, part_bytes);
    if (in_place && member != rank())
      copy(stream, whole + member * part_bytes, to, member, member * part_bytes, part_bytes);
  }
  for (const int source : plan_.remote) {
    const int proxy = plan_.proxy(source, plan_.node);
    if (proxy != rank()) copy(stream, whole + source * part_bytes, to, proxy, source * part_bytes, part_bytes);
  }
  // The others have read what came here; the buffer may be used again.
  meet_inside(stream, collective);
}

void NodeCommunicator::gather_from_nodes(Side& side, const Move& move, const Collective& collective) {
  for (const int source : plan_.served) {
    side.messages.receive(side.lane.at(source), move.to + source * move.part_bytes, move.part_bytes);
  }
  for (const int proxy : plan_.proxies) side.messages.send(side.lane.at(proxy), move.from, move.part_bytes);
  side.lane.finish(side.messages, collective);
}

void NodeCommunicator::reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) {
  Side& side = this->side(stream);
  if (what.staging == nullptr && what.part_count > 0)
    throw UsageError(
        "reduce_scatter between nodes needs staging: set ReduceScatter::staging (reduce_staging() says its size)");
  const Collective collective = meet(stream, describe_reduce_scatter(what, label), label);
  // What is in the task must fit in it: the lane keeps the rest.
  HostStream& worker = host(stream);
  worker.run([&side, what] { side.reducer.prepare(what); });
  worker.run([&side, &worker, collective] { side.reducer.run(worker.pool(), collective); });
}

void NodeCommunicator::all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes,
                                  Label label) {
  const Collective collective = meet(stream, describe_all_to_all(to, from, part_bytes, label), label);
  const Move move{begin_of(to), begin_of(from), part_bytes};
  host(stream).run([this, &side = side(stream), move, collective] { swap_with_nodes(side, move, collective); });
  for (const int member : plan_.members) {
    copy(stream, move.to + member * part_bytes, from, member, rank() * part_bytes, part_bytes);
  }
}

void NodeCommunicator::swap_with_nodes(Side& side, const Move& move, const Collective& collective) {
  for (const int other : plan_.remote) {
    side.messages.receive(side.lane.at(other), move.to + other * move.part_bytes, move.part_bytes);
  }
  for (const int other : plan_.remote) {
    side.messages.send(side.lane.at(other), move.from + other * move.part_bytes, move.part_bytes);
  }
  side.lane.finish(side.messages, collective);
}

void NodeCommunicator::transfer(Stream& stream, const Transfers& what, Label label) {
  const Collective collective = meet(stream, describe_transfer(what, label), label);
  HostStream& worker = host(stream);
  // What is in the task must fit in it: the lane keeps the rest.
  worker.run([&kept = side(stream).transfers, what] { kept = what; });
  worker.run([this, &side = side(stream), collective] { transfer_with_nodes(side, side.transfers, collective); });
  for (const Transfer& one : what.own) {
    if (one.target == rank() && plan_.node_of_rank[one.source] == plan_.node)
      copy(stream, begin_of(what.to) + one.to_bytes, what.from, one.source, one.from_bytes, one.size_bytes);
  }
}

/// Straight from the one rank to the other: nobody else needs these bytes.
void NodeCommunicator::transfer_with_nodes(Side& side, const Transfers& what, const Collective& collective) {
  const auto remote = [this](int other) { return plan_.node_of_rank[other] != plan_.node; };
  for (const Transfer& one : what.own) {
    if (one.target == rank() && remote(one.source) && one.size_bytes > 0)
      side.messages.receive(side.lane.at(one.source), begin_of(what.to) + one.to_bytes, one.size_bytes);
  }
  for (const Transfer& one : what.own) {
    if (one.source == rank() && remote(one.target) && one.size_bytes > 0)
      side.messages.send(side.lane.at(one.target), begin_of(what.from) + one.from_bytes, one.size_bytes);
  }
  side.lane.finish(side.messages, collective);
}

void NodeCommunicator::broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) {
  const Collective collective = meet(stream, describe_broadcast(range, size_bytes, root, label), label);
  const int first = plan_.proxy(root, plan_.node);  // of this node to have it
  if (first == rank()) {
    const Move move{begin_of(range), begin_of(range), size_bytes};
    host(stream).run([this, &side = side(stream), move, root, collective] { pass_on(side, move, root, collective); });
  }
  meet_inside(stream, collective);
  if (first != rank()) copy(stream, begin_of(range), range, first, 0, size_bytes);
  meet_inside(stream, collective);
}

// From node to node in a binomial tree, the root's first: node v, so counted, has it from v without its lowest set bit.
void NodeCommunicator::pass_on(Side& side, const Move& move, int root, const Collective& collective) {
  const int nodes = plan_.node_count();
  const int root_node = plan_.node_of_rank[root];
  const int own = (plan_.node - root_node + nodes) % nodes;
  const auto rank_at = [&](int place) { return plan_.proxy(root, (place + root_node) % nodes); };
  const int lowest = own & -own;
  if (own != 0) {
    side.messages.receive(side.lane.at(rank_at(own - lowest)), move.to, move.part_bytes);
    side.lane.finish(side.messages, collective);
  }
  for (int bit = 1; (own == 0 || bit < lowest) && own + bit < nodes; bit *= 2) {
    side.messages.send(side.lane.at(rank_at(own + bit)), move.from, move.part_bytes);
  }
  side.lane.finish(side.messages, collective);
}

void NodeCommunicator::all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) {
  const auto count = static_cast<int64_t>(values.size());
  if (count > kSmallCount)
    throw UsageError(fmt::format("all_reduce takes at most {} numbers, not {}", kSmallCount, count));
  HostStream& worker = host(stream);
  double* all = numbers_of(stream.lane());
  const Move move{reinterpret_cast<std::byte*>(all), reinterpret_cast<std::byte*>(all + rank() * count),
                  count * static_cast<int64_t>(sizeof(double))};
  worker.run([values, own = all + rank() * count] { std::copy(values.begin(), values.end(), own); });
  const Collective collective = meet(stream, describe_all_reduce(count, reduction, label), label);
  worker.run([this, &side = side(stream), move, collective] { gather_from_nodes(side, move, collective); });
  meet_inside(stream, collective);
  worker.run([values, all, count, reduction, ranks = rank_count()] {
    reduce_in_tree(values, ranks, reduction, [&](int r) { return all + r * count; });
  });
  meet_inside(stream, collective);  // all have read the table, which may be written again
}

double* NodeCommunicator::numbers_of(Lane lane) const {
  return reinterpret_cast<double*>(numbers_->writable) + static_cast<int64_t>(lane) * rank_count() * kSmallCount;
}

void NodeCommunicator::barrier(Stream& stream, Label label) { meet(stream, describe_barrier(label), label); }

std::unique_ptr<Communicator> NodeCommunicator::split(int color, int key) {
  const Group group = agree_on_group(*world_, color, key);
  return make_mpi_communicator(device_, world_->split_mpi(color, key), subset(topology_, group.members));
}

void NodeCommunicator::copy(Stream& stream, std::byte* to, SymmetricRange from, int peer, int64_t skip_bytes,
                            int64_t size_bytes) {
  if (size_bytes == 0) return;
  device_.kernels().copy(stream, to, from.buffer->peer(peer) + from.offset_bytes + skip_bytes, size_bytes);
}

}  // namespace aliquot
