#pragma once
// The gradient norm over all ranks and units, and the first parameter whose gradient is not finite.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"
#include "optim/norm_runs.h"
#include "optim/norm_tree.h"
#include "sharding/world.h"

namespace aliquot {

struct NormResult {
  double sum_of_squares = 0;
  std::string first_not_finite;  // first parameter in name order whose gradient is not finite; empty: none
  int abandoned_by = -1;         // lowest rank that abandons the step; -1: none
};

/// Computes the norm. All replicas have equal block sums, so each replica combines them separately, and only the
/// abandon flag needs an all-reduce over the world. Each rank sums the blocks of its shards over the subtrees that they
/// contain. A GPU computes these sums by itself, and the host reads only the parts of all ranks. Each pipeline stage
/// sums its own tensors, and the ranks of a tensor group add the sums of their slices. Then stages exchange the sums of
/// all tensors. So the norm does not depend on the number of stages. The plan and the groups must outlive it.
class GlobalNorm {
 public:
  /// On a GPU, writes the table kNormRuns.
  GlobalNorm(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view);

  /// Enqueues on `reduce` the collectives that exchange the parts and the abandon flags of all ranks. The buffers
  /// kBlockSquares and kNormParts must exist.
  void exchange(Stream& reduce, const StepMemory& memory, bool abandons, Label label);
  /// Sums the tensors of this stage. Call after the work of exchange() has run.
  void sum_tensors(const StepMemory& memory);
  /// Whether exchange_tensors() must be called.
  bool exchanges_tensors() const { return plan_.policy.tensor > 1 || plan_.stage.count > 1; }
  /// Enqueues on `reduce` the exchange of the sums of all tensors over the tensor group and pipeline stages. Call after
  /// sum_tensors().
  void exchange_tensors(Stream& reduce, Label label);
  /// Returns the norm, with the same bits on every rank. Call after the work of all exchanges has run.
  NormResult finish() const;

 private:
  /// The part of the norm that this rank computes for one flat buffer.
  struct FlatParts {
    int32_t flat;
    std::unique_ptr<LocalNormSums> parts;
    int64_t first_value;
    const double* squares = nullptr;  // on hosts: the block sums of this step
  };

  std::vector<NormNode> nodes_of(int rank) const;
  void prepare_gpu(const StepMemory& memory, const HostView& view);
  SplitRuns runs_on_gpu(const StepMemory& memory) const;
  void enqueue_on_host(Stream& reduce, const StepMemory& memory, double* own, bool abandons);
  void enqueue_on_gpu(Stream& reduce, const StepMemory& memory, double* own, bool abandons) const;
  void add_over(GroupId group, Stream& reduce, Label label);

  bool flags_need_world() const { return groups_.mesh().size(GroupId::kShard) < groups_.world().rank_count(); }

  const Plan& plan_;
  const MeshGroups& groups_;
  Communicator& ranks_;  // the shard group
  Device& device_;
  Buffer parts_mirror_;  // on GPUs: a copy of the norm parts in pinned host memory
  int64_t first_call_run_count_ = 0, second_call_run_count_ = 0;  // on GPUs: see SplitRuns
  /// Lists the tensors of all pipeline stages. Only those of this rank's pipeline stage have blocks.
  std::unique_ptr<NormTree> tree_;
  std::vector<FlatParts> own_;
  std::vector<int32_t> first_tensor_;  // for each flat buffer, the index of its first tensor in the tree
  std::vector<int64_t> value_counts_;  // number of values of each rank, without the abandon flag
  double abandoned_by_ = 0;            // lowest rank that abandons the step, or the rank count
  std::unique_ptr<GlobalNormSum> total_;
  std::vector<double> values_, tensor_sums_;  // tensor_sums_: one per tensor; 0 for tensors of other stages
  int64_t part_bytes_;
};

}  // namespace aliquot
