#pragma once
// Weights and gradients that travel in eight bits.

#include <deque>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// Enqueues what quantised gathers and reduces do on the stream it is given. Ranks lie in a grid: as many on every node, in
/// order. Between nodes a rank meets those at its own place on each, so that every byte crosses once; within a node all meet.
/// Allocates nothing after the first step. Used from the rank's own thread; everything given must outlive it.
class QuantizedCollectives {
 public:
  QuantizedCollectives(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Kernels& kernels);

  /// The own shard's code to the ranks at this place on other nodes, and theirs here.
  void gather_quantized_shards(Stream& lane, int32_t flat, Label label);
  /// All ranks' codes from the own node's ranks, decoded.
  void gather(Stream& lane, int32_t flat, Label label);
  /// As Communicator::reduce_scatter(), with what a node has added up rounded on its way to other nodes.
  void reduce_scatter(Stream& lane, int32_t flat, const ReduceScatter& what, Label label);
  /// Of this rank's shard, summed over its replica in kReplicaPartialSums, the sum over all replicas to kReducedGradients, and its squares: each peer
  /// adds up a part of what all round for it, and rounds it for all.
  void replica_all_reduce(Stream& lane, int32_t flat, Communicator& peers, Label label);
  void begin_step() { next_sources_ = 0; }

 private:
  /// Those of this rank among all that a collective moves.
  struct RankTransfers {
    std::vector<Transfer> own;
    int64_t all_bytes = 0;
  };
  /// Of one flat.
  struct FlatTransfers {
    RankTransfers refresh, gather, within_node, between_nodes;
  };

  int rank_of(int node, int place) const { return node * ranks_per_node_ + place; }
  void add(RankTransfers& runs, const Transfer& transfer) const;
  FlatTransfers flat_transfers(int64_t shard_count) const;
  void move(Stream& lane, Role to, Role from, int32_t flat, const RankTransfers& runs, Label label);
  std::span<const std::byte* const> sources(const std::byte* first, int count, int64_t stride_bytes);

  const Plan& plan_;
  const StepMemory& memory_;
  Communicator& ranks_;
  const Kernels& kernels_;
  int nodes_, ranks_per_node_;
  std::vector<FlatTransfers> transfers_;               // by flat
  std::deque<std::vector<const std::byte*>> sources_;  // of this step's sums, in order
  std::size_t next_sources_ = 0;
};

}  // namespace aliquot
