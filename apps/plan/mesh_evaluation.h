#pragma once
// Plans and simulates the choices of a search for a mesh.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "apps/plan/mesh_bound.h"
#include "apps/plan/mesh_search.h"

namespace aliquot {

/// A choice, and what a worker needs to plan it. The pointers lead into caches of MeshBounds, and stay valid while
/// other threads use it.
struct MeshTask {
  std::size_t index = 0;
  MeshChoice choice;
  MeshBound bound;
  /// The next step of the search for this choice. The first two steps improve its bound, the last one simulates it.
  enum class Next : uint8_t { kFitEnds, kUnsharded, kSimulate } next = Next::kFitEnds;
  const MeshModel* model = nullptr;
  const PipelineCut* cut = nullptr;
};

/// Returns the number of recomputed uses of each pipeline stage: MeshChoice::recompute or, if that is
/// kRecomputeAsNeeded, MeshBound::recompute.
int recompute_of(const MeshTask& task);

/// Returns the memory of the pipeline stage that needs the most.
int64_t most_rank_bytes(const std::vector<Plan>& stages);

/// Plans and simulates choices of one run. What the constructor refers to must outlive it. Thread-safe. Its functions
/// throw what choose_plans() throws.
class MeshEvaluation {
 public:
  using IsSlow = std::function<bool(const MeshChoice&)>;

  MeshEvaluation(const PlanOptions& options, const Topology& topology, int64_t limit_bytes)
      : options_(options), topology_(topology), limit_bytes_(limit_bytes) {}

  /// Plans the first and the last pipeline stage alone, which usually need the most memory. If the choice leaves the
  /// number of recomputed uses open, increases MeshBound::recompute until both fit. Returns false if one does not fit,
  /// or if `is_slow` returns true for an increased number.
  bool fit_ends(MeshTask& task, const IsSlow& is_slow) const;

  /// Whether unsharded_seconds() is a lower bound of the time of the choice.
  bool has_unsharded_bound(const MeshTask& task) const;
  /// Returns 99 % of the time of a step of the pipeline and its tensor groups alone, without sharding, replicas and
  /// updates. It does not depend on the shard group, the replicas, the ZeRO stage and the gathers.
  double unsharded_seconds(const MeshTask& task) const;

  /// Plans the choice. If it leaves the number of recomputed uses open, sets in `choice` the smallest number, at least
  /// MeshBound::recompute, with which the plans fit. The result may not fit. Returns nothing if `is_slow` returns true
  /// for an increased number. The step of the plans may have fewer micro-batches, from which result() extrapolates.
  std::vector<Plan> plans(const MeshTask& task, MeshChoice& choice, const IsSlow& is_slow) const;

  /// Simulates a step. `stages` is the result of plans().
  MeshResult result(const MeshTask& task, const MeshChoice& choice, const std::vector<Plan>& stages) const;

  /// Sets the memory of a result to that of a plan with all micro-batches. If the plan does not fit and the choice
  /// leaves the number of recomputed uses open, increases this number. Returns whether the result fits.
  bool fits(const MeshTask& task, MeshResult& result) const;

  /// Plans the choice with all micro-batches.
  std::vector<Plan> full_plans(const MeshTask& task, int recompute) const;

  /// Sets the shares of a result by two more simulations.
  void set_shares(const MeshTask& task, MeshResult& result) const;

 private:
  class Steps;

  Policy policy(const MeshTask& task, int recompute, int micro_batches) const;
  std::vector<Plan> plans(const MeshTask& task, int recompute, int micro_batches) const;
  std::vector<Plan> plans(const MeshTask& task, int recompute) const;
  /// The number of micro-batches in a step of the result of plans().
  int planned_micro_batches(const MeshChoice& choice) const;

  const PlanOptions& options_;
  const Topology& topology_;
  int64_t limit_bytes_;
};

}  // namespace aliquot
