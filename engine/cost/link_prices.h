#pragma once
// The prices of transfers within a node and between nodes.

#include "engine/cost/inter_node_groups.h"
#include "engine/cost/prices.h"

namespace aliquot {

/// The ranks that take part in a collective.
struct GroupExtent {
  explicit GroupExtent(const Topology& topology);

  int rank_count, min_ranks_per_node;
  bool one_node;
};

/// Two pipeline stages of `ranks` ranks each, of which `from` sends to `to`.
struct StageTransfer {
  const Topology& world;
  int ranks, from, to;
};

/// Returns the price of a transfer of `bytes` by each rank of a pipeline stage. Assumes that all of these ranks send at
/// the same time, and that the other stage is ready.
Price transfer_price(const CostModel& cost, const StageTransfer& stages, int64_t bytes);

/// Returns the duration within a node of a collective in a tensor group of `ranks` ranks, each of which owns
/// `part_bytes`.
double tensor_collective_seconds(const CostModel& cost, int ranks, CollectiveKind kind, int64_t part_bytes);

/// Prices of transfers for one plan and one machine. The plan and the cost model must outlive this object.
class LinkPrices {
 public:
  LinkPrices(const Plan& plan, const CostModel& cost);

  const GroupExtent& replica() const { return replica_; }
  const GroupExtent& world() const { return world_; }
  const InterNodeGroups& crossings() const { return crossings_; }
  int nodes() const { return node_count_; }
  int ranks_per_node() const { return replica_.rank_count / node_count_; }
  /// Number of shard groups that share the link of the first node.
  int64_t groups() const { return static_cast<int64_t>(crossings_.replicas.size()); }

  /// Returns the price of a transfer that takes `inside_seconds` within the node. If `crosses` is true, it also sends
  /// `crossing_bytes` over the link of the node, in `rounds` rounds. On hosts without spare cores, the price includes
  /// the slowdown while compute runs.
  Price move(double inside_seconds, int64_t crossing_bytes, bool crosses, int rounds = 1) const;
  /// Returns the price of an all-gather or a reduce-scatter of a shard group in which each rank contributes
  /// `part_bytes`. `crossing_bytes`: what the first node sends to other nodes, for all replicas that share its link.
  Price collective(int64_t part_bytes, int64_t crossing_bytes) const;
  /// Returns `crossing_bytes` of an all-gather. Each part is sent once to each other node, whose ranks share it.
  int64_t inter_node_gather_bytes(int64_t part_bytes) const;
  /// Returns the price of a collective of a tensor group in which each rank owns `part_count` elements.
  Price tensor_collective(CollectiveKind kind, int64_t part_count, DType dtype) const;
  /// Returns the price of a collective of a use.
  Price use_collective(const UseCollective& what) const;
  /// Returns transfer_price() for the stage of the plan and the neighboring stage in `group`.
  Price transfer(int64_t bytes, GroupId group) const;
  /// The price of a loop that reads and writes this many bytes.
  Price memory_traffic(double bytes) const { return move(bytes / cost_.copy_bytes_per_second, 0, false); }
  /// Returns the price of receiving `bytes` from each of `peers` ranks. The peers are on this node or, if `across` is
  /// true, on other nodes. With `across`, all ranks of a node receive at the same time.
  Price receive_from(int peers, int64_t bytes, bool across) const;

 private:
  const Plan& plan_;
  const CostModel& cost_;
  GroupExtent replica_, world_;
  InterNodeGroups crossings_;
  int node_count_;
};

/// Adds `one`, the price of a further part of the same operation, to `sum`.
void add(Price& sum, const Price& one);

}  // namespace aliquot
