#pragma once
// Sums over the uses of a model, for the lower bounds of a mesh.

#include <cstdint>
#include <vector>

#include "apps/plan/machine.h"
#include "apps/plan/plan_options.h"
#include "engine/cost/simulate.h"
#include "engine/plan/pipeline.h"
#include "engine/plan/schedule.h"

namespace aliquot {

/// A model with one size of tensor groups and of micro-batches, and its sums over the uses.
struct MeshModel {
  ModelSpec model;
  CostModel cost;
  /// For each use, the sums over the uses before it. Seconds are for one micro-batch on one rank, and include the
  /// collectives of a use. The elements of a unit are counted in the last use of the unit.
  struct Sums {
    double forward_seconds = 0, backward_seconds = 0, recompute_seconds = 0;
    int64_t elements = 0;          // of the parameters of a rank, before they are sharded
    int64_t trained_elements = 0;  // of those that the optimizer updates
    int64_t recomputable = 0;      // number of recomputable uses

    Sums operator+(const Sums& other) const;
  };
  std::vector<Sums> before;
  std::vector<bool> splits;      // whether a backward in two parts splits the backward of the use
  int64_t largest_unit = 0;      // elements of the unit with the most elements
  double recompute_seconds = 0;  // the shortest recompute of a recomputable use

  Sums of(const VirtualStage& run) const;
};

/// Returns the model for the tensor groups and micro-batches of the options.
MeshModel mesh_model(const PlanOptions& options, const Machine& machine);

/// The elements of a unit's parameters on a rank of a tensor group, before they are sharded.
int64_t elements_of(const UnitSpec& unit, int tensor, bool only_trained = false);

}  // namespace aliquot
