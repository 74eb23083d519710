#include "engine/cost/link_prices.h"

#include <algorithm>

namespace aliquot {

GroupExtent::GroupExtent(const Topology& topology)
    : rank_count(topology.rank_count()), min_ranks_per_node(rank_count), one_node(topology.one_node()) {
  std::vector<int> ranks_of_node(static_cast<std::size_t>(topology.node_count()), 0);
  for (const int node : topology.node_of_rank) ++ranks_of_node[node];
  for (const int count : ranks_of_node) min_ranks_per_node = std::min(min_ranks_per_node, count);
}

LinkPrices::LinkPrices(const Plan& plan, const CostModel& cost)
    : plan_(plan),
      cost_(cost),
      replica_(plan.topology),
      world_(plan.data_topology),
      crossings_(topology_of_stage(plan.world, plan.stage.count, plan.stage.index), plan.mesh()),
      node_count_(plan.topology.node_count()) {}

namespace {

/// See LinkPrices::move().
Price price_of_move(const CostModel& cost, double inside_seconds, int64_t crossing_bytes, bool crosses, int rounds) {
  const auto on = [&](const LinkCost& link) {
    return crosses ? rounds * link.latency_seconds + static_cast<double>(crossing_bytes) / link.bytes_per_second : 0;
  };
  const double link_seconds = on(cost.between_nodes);
  Price price{.seconds = inside_seconds + link_seconds,
              .crossing_bytes = crossing_bytes,
              .link_seconds = link_seconds - (crosses ? rounds * cost.between_nodes.latency_seconds : 0)};
  if (cost.cores_per_thread == 0 || cost.cores_per_thread > 1 || price.seconds == 0) return price;
  price.seconds_while_computing = 2 * inside_seconds + std::max(on(cost.beside_compute), link_seconds);
  price.core_share = (inside_seconds / 2 + link_seconds * cost.beside_compute_share) / price.seconds;
  return price;
}

}  // namespace

Price transfer_price(const CostModel& cost, const StageTransfer& stages, int64_t bytes) {
  const auto& nodes = stages.world.node_of_rank;
  const int first = stages.from * stages.ranks, distance = (stages.to - stages.from) * stages.ranks;
  // Number of ranks on the node of rank `first` whose counterpart is on another node.
  int crossing_ranks = 0;
  for (int r = first; r < first + stages.ranks; ++r)
    crossing_ranks += nodes[r] == nodes[first] && nodes[r] != nodes[r + distance] ? 1 : 0;
  const double inside = cost.inside_node.latency_seconds +
                        (crossing_ranks > 0 ? 0 : static_cast<double>(bytes) / cost.inside_node.bytes_per_second);
  Price price = price_of_move(cost, inside, bytes * crossing_ranks, crossing_ranks > 0, 1);
  price.bytes = bytes;
  return price;
}

Price LinkPrices::move(double inside_seconds, int64_t crossing_bytes, bool crosses, int rounds) const {
  return price_of_move(cost_, inside_seconds, crossing_bytes, crosses, rounds);
}

Price LinkPrices::collective(int64_t part_bytes, int64_t crossing_bytes) const {
  if (replica_.rank_count == 1) return {};
  const int64_t bytes = part_bytes * (replica_.rank_count - 1);
  const double inside =
      cost_.inside_node.latency_seconds + static_cast<double>(bytes) / cost_.inside_node.bytes_per_second;
  Price price = move(inside, crossing_bytes, !replica_.one_node);
  price.bytes = bytes;
  return price;
}

namespace {

/// The parts of a collective of a tensor group. A sum is a reduce-scatter and an all-gather.
struct CollectiveParts {
  explicit CollectiveParts(CollectiveKind kind)
      : sums(kind != CollectiveKind::kGather), gathers(kind != CollectiveKind::kScatterSum) {}

  bool sums, gathers;
  int count() const { return (sums ? 1 : 0) + (gathers ? 1 : 0); }
  /// A barrier ends each collective.
  int rounds() const { return count() + 1; }
};

}  // namespace

double tensor_collective_seconds(const CostModel& cost, int ranks, CollectiveKind kind, int64_t part_bytes) {
  const CollectiveParts parts(kind);
  return parts.rounds() * cost.inside_node.latency_seconds +
         static_cast<double>(part_bytes * (ranks - 1) * parts.count()) / cost.inside_node.bytes_per_second;
}

Price LinkPrices::tensor_collective(CollectiveKind kind, int64_t part_count, DType dtype) const {
  const int64_t part_bytes = part_count * element_bytes(dtype);
  const CollectiveParts parts(kind);
  int64_t crossing_bytes = 0;
  for (const GroupPlacement& of : crossings_.tensors) {
    if (parts.sums) crossing_bytes += of.reduced_bytes(part_count, dtype);
    if (parts.gathers) crossing_bytes += of.gathered_bytes(part_bytes);
  }
  Price price = move(tensor_collective_seconds(cost_, plan_.policy.tensor, kind, part_bytes), crossing_bytes,
                     crossings_.tensor_groups_cross, parts.rounds());
  price.bytes = part_bytes * (plan_.policy.tensor - 1) * parts.count();
  return price;
}

Price LinkPrices::use_collective(const UseCollective& what) const {
  Price price = tensor_collective(what.kind, what.rows_per_part(plan_.policy.tensor) * what.row_elements, what.dtype);
  price.seconds_while_computing = price.core_share = 0;  // model code waits for the collective, so none runs beside it
  return price;
}

Price LinkPrices::transfer(int64_t bytes, GroupId group) const {
  const int own = plan_.stage.index, count = plan_.stage.count;
  const int other = (own + (group == GroupId::kNextStage ? 1 : count - 1)) % count;
  return transfer_price(cost_, {plan_.world, plan_.world.rank_count() / count, own, other}, bytes);
}

int64_t LinkPrices::inter_node_gather_bytes(int64_t part_bytes) const {
  int64_t bytes = 0;
  for (const GroupPlacement& of : crossings_.replicas) bytes += of.gathered_bytes(part_bytes);
  return bytes;
}

Price LinkPrices::receive_from(int peers, int64_t bytes, bool across) const {
  if (peers == 0) return {};
  const int64_t all = peers * bytes, crossing = across ? all * ranks_per_node() * groups() : 0;
  const double seconds =
      cost_.inside_node.latency_seconds + (across ? 0 : static_cast<double>(all) / cost_.inside_node.bytes_per_second);
  Price price = move(seconds, crossing, !replica_.one_node);
  price.bytes = all;
  return price;
}

void add(Price& sum, const Price& one) {
  const double seconds = sum.seconds + one.seconds;
  if (seconds > 0) sum.core_share = (sum.core_share * sum.seconds + one.core_share * one.seconds) / seconds;
  sum.seconds = seconds;
  sum.seconds_while_computing += one.seconds_while_computing;
  sum.link_seconds += one.link_seconds;
  sum.bytes += one.bytes;
  sum.crossing_bytes += one.crossing_bytes;
}

}  // namespace aliquot
