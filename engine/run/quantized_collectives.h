#pragma once
// Collectives that send weights and gradients as 8-bit values.

#include <deque>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// Enqueues quantized gathers and reduces. Every node has the same number of contiguous ranks. Between nodes, a rank
/// communicates only with the ranks that have its index on their node, so each byte is sent to a node once. Within a
/// node, all ranks communicate. Allocates nothing after the first step. Used from the rank's own thread. Everything
/// passed must outlive it.
class QuantizedCollectives {
 public:
  QuantizedCollectives(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Kernels& kernels);

  /// Quantizes this rank's shard, and all-gathers quantized shards over the ranks that have the same index on their
  /// node.
  void gather_quantized_shards(Stream& lane, int32_t flat, Label label);
  /// Gathers all quantized shards from the ranks of this node, which hold them after gather_quantized_shards(), and
  /// decodes them.
  void gather(Stream& lane, int32_t flat, Label label);
  /// Like Communicator::reduce_scatter(), but quantizes the sums of a node before sending them to other nodes.
  void reduce_scatter(Stream& lane, int32_t flat, const ReduceScatter& what, Label label);
  /// Sums kReplicaPartialSums over all replicas into kReducedGradients, and computes the sums of squares of its blocks.
  /// Each rank of `peers` sums quantized inputs for one part, and sends the quantized sum to the other ranks.
  void replica_all_reduce(Stream& lane, int32_t flat, Communicator& peers, Label label);
  void begin_step() { next_sources_ = 0; }

 private:
  /// The transfers of a collective that this rank sends or receives, and the total size of the transfers of all ranks.
  struct RankTransfers {
    std::vector<Transfer> own;
    int64_t all_bytes = 0;
  };
  /// The transfers of one flat buffer.
  struct FlatTransfers {
    RankTransfers refresh, gather, within_node, between_nodes;
  };

  int rank_of(int node, int place) const { return node * ranks_per_node_ + place; }
  void add(RankTransfers& transfers, const Transfer& transfer) const;
  FlatTransfers flat_transfers(int64_t shard_count) const;
  void move(Stream& lane, Role to, Role from, int32_t flat, const RankTransfers& transfers, Label label);
  std::span<const std::byte* const> sources(const std::byte* first, int count, int64_t stride_bytes);

  const Plan& plan_;
  const StepMemory& memory_;
  Communicator& ranks_;
  const Kernels& kernels_;
  int nodes_, ranks_per_node_;
  std::vector<FlatTransfers> transfers_;               // one for each flat buffer
  std::deque<std::vector<const std::byte*>> sources_;  // addresses that each sum of this step reads, in order
  std::size_t next_sources_ = 0;
};

}  // namespace aliquot
