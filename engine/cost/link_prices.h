#pragma once
// What moving bytes between ranks takes, within a node and across.

#include "engine/cost/inter_node_groups.h"
#include "engine/cost/prices.h"

namespace aliquot {

/// Whom a collective goes round.
struct GroupExtent {
  explicit GroupExtent(const Topology& topology);

  int rank_count, min_ranks_per_node;
  bool one_node;
};

/// Prices of moves, of one plan on one machine; both must outlive it.
class LinkPrices {
 public:
  LinkPrices(const Plan& plan, const CostModel& cost);

  const GroupExtent& replica() const { return replica_; }
  const GroupExtent& world() const { return world_; }
  const InterNodeGroups& crossings() const { return crossings_; }
  int nodes() const { return node_count_; }
  int ranks_per_node() const { return replica_.rank_count / node_count_; }
  /// Replicas that share the first node's link.
  int64_t groups() const { return static_cast<int64_t>(crossings_.replicas.size()); }

  /// One collective: what it takes inside the node, and then, where it crosses, on the node's link. On a host that has no
  /// core to spare, copying and computing take turns, and what waits for messages waits for its turn.
  Price move(double inside_seconds, int64_t crossing_bytes, bool crosses, int rounds = 1) const;
  /// All ranks' parts to, or from, all ranks: what comes from other nodes comes once to each node, then goes round in it.
  Price collective(int64_t part_bytes, int64_t crossing_bytes) const;
  int64_t inter_node_gather_bytes(int64_t part_bytes) const;
  /// What a loop reads and writes.
  Price memory_traffic(double bytes) const { return move(bytes / cost_.copy_bytes_per_second, 0, false); }
  /// From `peers` others, `bytes` of each: of this node, or of others, which all of a node's ranks are sent at once. All ranks
  /// meet for either.
  Price receive_from(int peers, int64_t bytes, bool across) const;

 private:
  const CostModel& cost_;
  GroupExtent replica_, world_;
  InterNodeGroups crossings_;
  int node_count_;
};

/// One after the other.
void add(Price& sum, const Price& one);

}  // namespace aliquot
