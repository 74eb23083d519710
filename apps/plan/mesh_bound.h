#pragma once
// Lower bounds of the memory and the step time of a mesh, which a search computes much faster than a plan.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "apps/plan/machine.h"
#include "apps/plan/mesh_choice.h"
#include "apps/plan/mesh_model.h"
#include "engine/choose/pipeline_cut.h"
#include "engine/cost/inter_node_groups.h"

namespace aliquot {

/// A lower bound of the step time and of the memory of a rank.
struct MeshBound {
  double seconds = 0;
  int64_t bytes = 0;
  int recompute = 0;  // the smallest number of recomputed uses of each pipeline stage that may fit
};

/// Computes bounds for one world, and caches what several choices share. Not thread-safe. The options and the machine
/// must outlive it.
class MeshBounds {
 public:
  /// `limit_bytes`: the memory of a rank.
  MeshBounds(const PlanOptions& options, const Machine& machine, int64_t limit_bytes);

  /// Returns the bound of a choice. If MeshChoice::recompute is kRecomputeAsNeeded, assumes the smallest number of
  /// recomputed uses with which the memory may suffice. If none suffices, MeshBound::bytes exceeds the limit. Throws
  /// UsageError if the model cannot be divided in this way.
  MeshBound of(const MeshChoice& choice);

  const MeshModel& model(int tensor, int64_t micro_batch);
  /// The pipeline cut that choose_plans() chooses; empty without a pipeline.
  const PipelineCut& cut(const MeshChoice& choice);
  const Topology& topology() const { return topology_; }

 private:
  using CutKey = std::pair<std::pair<int, int64_t>, std::pair<int, int>>;

  const std::vector<PipelineStage>& stages(const MeshChoice& choice);
  const InterNodeGroups& groups(const Mesh& mesh, int stage);
  Policy policy(const MeshChoice& choice, bool with_cut);

  const PlanOptions& options_;
  const Machine& machine_;
  int64_t limit_bytes_;
  Topology topology_;
  std::map<std::pair<int, int64_t>, std::unique_ptr<MeshModel>> models_;
  std::map<CutKey, std::pair<PipelineCut, std::vector<PipelineStage>>> cuts_;
  std::map<std::array<int, 5>, std::unique_ptr<InterNodeGroups>> groups_;  // by the mesh and the pipeline stage
};

}  // namespace aliquot
