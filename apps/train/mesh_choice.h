#pragma once
// The choice of a mesh for a run with --mesh auto.

#include "apps/options/train_options.h"
#include "apps/plan/plan_options.h"
#include "sharding/world.h"

namespace aliquot {

/// Returns the options with which the search plans the steps of the world.
PlanOptions plan_options(World& world, const TrainOptions& options);

/// With --mesh auto, replaces it by the fastest mesh that fits, and sets the options that belong to the mesh and
/// --global-batch. Sets MeshOption::reason. Rank 0 chooses, and the other ranks take its choice. Collective. Throws
/// UnavailableError on all ranks if no mesh fits, and UsageError if the ranks compute on GPUs and --machine is not
/// given.
void choose_mesh(World& world, TrainOptions& options);

}  // namespace aliquot
