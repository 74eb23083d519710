#pragma once
// The search for the fastest mesh that fits (--mesh auto).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/machine.h"
#include "apps/plan/mesh_choice.h"
#include "apps/plan/plan_text.h"

namespace aliquot {

/// The parts of a step, as shares of its time. They add up to 1. They come from simulations with the same plans and
/// with links that take no time.
struct StepShares {
  double compute = 0;        // forward, backward and updates of the pipeline stage that computes the most
  double waits = 0;          // for other pipeline stages, and for copies; remains if no link takes time
  double inside_node = 0;    // the time by which links inside a node make the step longer
  double between_nodes = 0;  // the time by which links between nodes make the step longer
};

/// A choice and what its simulation gave.
struct MeshResult {
  MeshChoice choice;
  int64_t rank_bytes = 0;      // of the pipeline stage that needs the most
  double seconds = 0;          // of a step
  int64_t sent_bytes = 0;      // by a rank in a step: the maximum over the pipeline stages
  int64_t crossing_bytes = 0;  // by the first node to other nodes in a step
  StepShares shares;
};

struct MeshSearch {
  std::vector<MeshResult> best;  // the fastest choice of each of the fastest meshes that fit, the fastest first
  std::optional<RankMemoryLimit> limit;
  int64_t global_batch = 0;
  double tokens = 0;  // in a step
  int64_t parameters = 0;
  int64_t meshes = 0, choices = 0;     // the numbers of meshes and of choices that were compared
  int64_t planned = 0, simulated = 0;  // the numbers of choices that bounds did not exclude
  std::optional<MeshResult> smallest;  // if nothing fits: the choice whose bound needs the least memory

  /// Why the fastest mesh was chosen, or why none was, in one line.
  std::string reason(const std::string& machine) const;
};

struct MeshSearchOptions {
  int count = 1;            // the number of meshes to return
  bool uses_bounds = true;  // false: plans and simulates all choices
  int threads = 0;          // 0: one on each allowed core
};

/// Finds the fastest choices for the world, the model and the global batch of `options`, whose --mesh is "auto". The
/// memory of a rank is limited by memory_limit(). Plans and simulates choices in the order of the lower bounds of their
/// step times, until the bounds of the remaining ones exceed the times that were found. Throws UsageError if no mesh
/// is possible, for example because the global batch cannot be divided.
MeshSearch search_meshes(const PlanOptions& options, const Machine& machine, const MeshSearchOptions& how);

}  // namespace aliquot
