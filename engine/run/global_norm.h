#pragma once
// The gradient norm over all ranks and units, and the first parameter that spoils it.

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
  std::string first_not_finite;  // the first parameter, by name, whose gradient is not finite; empty: all are
  int abandoned_by = -1;         // the first rank that abandoned the step; -1: none did
};

/// Replicas have the same sums of blocks, so each puts its own together; whether a rank abandons goes over the world.
/// Made collectively, from a plan alone; the plan and groups must outlive it. Sums of blocks are put together on the host,
/// where a GPU's come through pinned memory.
class GlobalNorm {
 public:
  GlobalNorm(const Plan& plan, const ReplicaGroups& groups);

  /// Enqueues on `reduce` what brings all ranks' parts together, and whether this rank abandons the step.
  /// kBlockSquares and kNormParts must be in use.
  void exchange(Stream& reduce, const StepMemory& memory, bool abandons, Label label);
  /// When that has run: the norm, the same bits on every rank.
  NormResult finish(const StepMemory& memory);

 private:
  /// This rank's values of one flat: its own sums start at the flat's squares.
  struct FlatParts {
    int32_t flat;
    std::unique_ptr<LocalNormSums> parts;
    int64_t first_value;
    int64_t block_count, first_mirrored;
    const double* squares = nullptr;  // of this step, as the host reads them
  };

  std::vector<NormNode> nodes_of(int rank) const;
  void sum_own(double* own) const;

  const Plan& plan_;
  const ReplicaGroups& groups_;
  Communicator& ranks_;  // of the replica
  Device& device_;
  Buffer squares_mirror_, parts_mirror_;  // of a GPU's memory
  std::unique_ptr<NormTree> tree_;
  std::vector<FlatParts> own_;
  std::vector<int32_t> first_tensor_;  // by flat: its first tensor in the tree
  std::vector<int64_t> value_counts_;  // by rank, without its word on abandoning
  double abandoned_by_ = 0;            // with replicas: the first rank of the world that does, or a number above all
  std::unique_ptr<GlobalNormSum> total_;
  std::vector<double> values_, tensor_sums_;
  int64_t part_bytes_;
};

}  // namespace aliquot
