#pragma once
// Lower bounds of the memory and the traffic of one pipeline stage, from sums over the model.

#include <cstdint>

#include "apps/plan/mesh_choice.h"
#include "apps/plan/mesh_model.h"
#include "engine/cost/inter_node_groups.h"

namespace aliquot {

/// One pipeline stage of a choice. Refers to its members, which must outlive it.
struct BoundedStage {
  const MeshChoice& choice;
  const Policy& policy;
  const MeshModel& model;
  const PipelineStage& stage;
  bool gathers_views;  // whether gathers of parameters are views, which take neither time nor memory
};

/// A lower bound of the memory of a rank of a pipeline stage.
class StageBound {
 public:
  explicit StageBound(const BoundedStage& of);  // copies the references of `of`

  /// The sums over all uses of the stage.
  const MeshModel::Sums& all() const { return all_; }
  /// The bytes of a rank if the first `recompute` recomputable uses are recomputed.
  int64_t bytes(int64_t recompute) const { return persistent_bytes() + activation_bytes(recompute); }
  /// Returns the smallest number of recomputed uses with which the bytes are within the limit, or the number of
  /// recomputable uses.
  int64_t least_recompute(int64_t limit_bytes) const;

 private:
  int64_t persistent_bytes() const;
  int64_t activation_bytes(int64_t recompute) const;
  int64_t saved_bytes(const VirtualStage& run, int64_t recompute) const;
  int64_t split_bytes(const VirtualStage& run) const;
  int64_t first_backward_bytes() const;
  const UseActivations& use(int32_t index) const;

  BoundedStage of_;
  MeshModel::Sums all_;
};

/// Returns a lower bound of the time for which the collectives of a step keep a lane or a link of the stage busy.
/// `groups`: those of the stage. `all`: StageBound::all().
double traffic_seconds(const BoundedStage& of, const InterNodeGroups& groups, const MeshModel::Sums& all);

}  // namespace aliquot
