#include "sharding/mpi/reduce_mpi.h"

#include <algorithm>

#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {
NodeReducer::NodeReducer(const Topology& topology, const NodeRoutes& routes, MpiLane& lane)
    : staging_places_{reduce_staging_places(topology), reduce_staging_places(topology, true)},
      routes_(routes),
      lane_(lane) {
  for (Slot& slot : slots_) slot.sources.resize(routes.node_of_rank.size());
  member_sources_.resize(routes.members.size());
}

void NodeReducer::prepare(const ReduceScatter& what) {
  what_ = what;
  nodes_add_first_ = routes_.nodes_reduce_first && !what.alone;
  cut_ = reduce_staging(staging_places_[what.alone ? 1 : 0], what.part_count);
  slots_[0].staging = what.staging;
  slots_[1].staging = what.staging + (cut_.slot_count - 1) * cut_.slot_bytes();
}

void NodeReducer::run(ThreadPool& pool, const Collective& collective) {
  pool_ = &pool;
  const auto piece = [&](int64_t begin) {
    return Piece{begin, std::min(cut_.piece_elements, what_.part_count - begin)};
  };
  if (what_.part_count > 0) start(slots_[0], piece(0));
  int current = 0;
  for (int64_t begin = 0; begin < what_.part_count; begin += cut_.piece_elements, current ^= 1) {
    const int64_t next = begin + cut_.piece_elements;
    if (next < what_.part_count) start(slots_[current ^ 1], piece(next));
    lane_.wait_for(slots_[current].messages, collective);
    finish(slots_[current], piece(begin));
  }
}

void NodeReducer::start(Slot& slot, Piece piece) {
  if (nodes_add_first_) {
    start_sums(slot, piece);
  } else {
    start_leaves(slot, piece);
  }
}

void NodeReducer::start_sums(Slot& slot, Piece piece) {
  const int64_t sum_bytes = piece.count * element_bytes(DType::kFloat32);
  int64_t place = 0;
  for (int node = 0; node < routes_.node_count(); ++node) {
    std::byte* sum = stage(slot, place++);
    slot.sources[node] = sum;
    if (node != routes_.node)
      slot.messages.receive(lane_.envelope_for(routes_.proxy(routes_.rank, node)), sum, sum_bytes);
  }
  const auto add_members = [&](int destination, std::byte* to) {
    for (std::size_t i = 0; i < routes_.members.size(); ++i) {
      member_sources_[i] = own_from(routes_.members[i], destination, piece.begin);
    }
    add({.bases = member_sources_, .from_dtype = what_.from_dtype, .to = to, .count = piece.count});
  };
  for (const int destination : routes_.served_ranks) {
    std::byte* sum = stage(slot, place++);
    add_members(destination, sum);
    slot.messages.send(lane_.envelope_for(destination), sum, sum_bytes);
  }
  add_members(routes_.rank, stage(slot, routes_.node));
}

void NodeReducer::start_leaves(Slot& slot, Piece piece) {
  const int64_t leaf_bytes = piece.count * element_bytes(what_.from_dtype);
  for (std::size_t i = 0; i < routes_.remote_ranks.size(); ++i) {
    std::byte* leaf = stage(slot, static_cast<int64_t>(i));
    slot.sources[routes_.remote_ranks[i]] = leaf;
    slot.messages.receive(lane_.envelope_for(routes_.remote_ranks[i]), leaf, leaf_bytes);
  }
  for (const int member : routes_.members) slot.sources[member] = own_from(member, routes_.rank, piece.begin);
  for (const int destination : routes_.remote_ranks) {
    slot.messages.send(lane_.envelope_for(destination), own_from(routes_.rank, destination, piece.begin), leaf_bytes);
  }
}

void NodeReducer::finish(Slot& slot, Piece piece) {
  const std::size_t source_count = nodes_add_first_ ? routes_.nodes.size() : slot.sources.size();
  add({.bases = std::span(slot.sources).first(source_count),
       .from_dtype = nodes_add_first_ ? DType::kFloat32 : what_.from_dtype,
       .to = static_cast<std::byte*>(what_.to) + piece.begin * element_bytes(what_.to_dtype),
       .to_dtype = what_.to_dtype,
       .count = piece.count,
       .factor = what_.factor,
       .block_squares = what_.block_squares == nullptr ? nullptr : what_.block_squares + piece.begin / kBlockElements});
}

void NodeReducer::add(TreeSum sum) {
  const HostLoops& loops = host_loops(best_isa());
  pool_->for_ranges(sum.count, kBlockElements, [&](int64_t begin, int64_t end) { loops.sum_tree(sum, begin, end); });
}

/// The contribution of `rank`, a rank of this node, to the part that `destination` gets.
const std::byte* NodeReducer::own_from(int rank, int destination, int64_t begin) const {
  const int part = what_.part_of(destination, static_cast<int>(routes_.node_of_rank.size()));
  const int64_t elements = part * what_.part_count + begin;
  return what_.from.buffer->peer(rank) + what_.from.offset_bytes + elements * element_bytes(what_.from_dtype);
}

std::byte* NodeReducer::stage(const Slot& slot, int64_t place) const {
  return slot.staging + place * cut_.piece_elements * element_bytes(DType::kFloat32);
}

}  // namespace aliquot
