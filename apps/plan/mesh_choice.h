#pragma once
// What `--mesh auto` chooses, and all combinations that it compares.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/plan/plan_options.h"

namespace aliquot {

/// A mesh, and the options that belong to it.
struct MeshChoice {
  Mesh mesh;
  int zero_stage = 3;
  int64_t micro_batch = 1;
  int accumulate = 1;  // the number of micro-batches of this size that gives the global batch
  int recompute = kRecomputeAsNeeded;
  int gather_for = kGatherForAuto;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 1;

  int data_ranks() const { return mesh.replica * mesh.shard; }
};

/// The sequences of a step over all ranks: --global-batch or, without it, those of a run without pipeline stages and
/// tensor groups.
int64_t global_batch_of(const PlanOptions& options);

/// The options as the command line names them, with the values of the choice. Omits options that have no effect with
/// the mesh, except --zero-stage and --micro-batch.
std::vector<GivenOption> options_of(const MeshChoice& choice);

/// The same options as a command line.
std::string options_text(const MeshChoice& choice);

/// Returns the options of a run with this choice.
PlanOptions with_choice(PlanOptions options, const MeshChoice& choice);

/// Returns all choices for the world and the global batch of `options`. Each choice keeps the values of options that
/// the user gave (MeshOption::kept). The meshes have these properties:
/// - A tensor group is on one node, and divides the attention heads equally.
/// - A pipeline stage has at least one of the `use_count` uses of the model.
/// - Micro-batches of the same size on all ranks give the global batch.
/// MeshChoice::recompute is kRecomputeAsNeeded unless the user gave --recompute.
std::vector<MeshChoice> mesh_choices(const PlanOptions& options, int64_t use_count, bool can_split_backward);

}  // namespace aliquot
