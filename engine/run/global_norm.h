#pragma once
// The gradient norm over all ranks and units, and the first parameter whose gradient is not finite.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/replica_groups.h"
#include "optim/norm_tree.h"
#include "sharding/world.h"

namespace aliquot {

struct NormResult {
  double sum_of_squares = 0;
  std::string first_not_finite;  // first parameter in name order whose gradient is not finite; empty: none
  int abandoned_by = -1;         // lowest rank that abandons the step; -1: none
};

/// Computes the norm. All replicas have the same block sums, so each replica combines its own; only the abandon flag
/// needs an all-reduce over the world. Block sums are combined on the host; those of a GPU are copied through pinned
/// memory. The plan and the groups must outlive it.
class GlobalNorm {
 public:
  GlobalNorm(const Plan& plan, const ReplicaGroups& groups);

  /// Enqueues the collectives for all ranks' parts and the abandon flags on `reduce`. kBlockSquares and kNormParts must
  /// be in use.
  void exchange(Stream& reduce, const StepMemory& memory, bool abandons, Label label);
  /// Returns the norm, with the same bits on every rank. Call after the work of exchange() has run.
  NormResult finish(const StepMemory& memory);

 private:
  /// The part of the norm that this rank computes for one flat.
  struct FlatParts {
    int32_t flat;
    std::unique_ptr<LocalNormSums> parts;
    int64_t first_value;
    int64_t block_count, first_mirrored;
    const double* squares = nullptr;  // block sums of this step, at an address that the host can read
  };

  std::vector<NormNode> nodes_of(int rank) const;
  void sum_own(double* own) const;

  const Plan& plan_;
  const ReplicaGroups& groups_;
  Communicator& ranks_;  // the shard group
  Device& device_;
  Buffer squares_mirror_, parts_mirror_;  // on GPUs: copies in pinned host memory
  std::unique_ptr<NormTree> tree_;
  std::vector<FlatParts> own_;
  std::vector<int32_t> first_tensor_;  // by flat: its first tensor in the tree
  std::vector<int64_t> value_counts_;  // by rank, without the abandon flag
  double abandoned_by_ = 0;            // with replicas: lowest rank of the world that abandons, or the number of ranks
  std::unique_ptr<GlobalNormSum> total_;
  std::vector<double> values_, tensor_sums_;
  int64_t part_bytes_;
};

}  // namespace aliquot
