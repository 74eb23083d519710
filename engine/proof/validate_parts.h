#pragma once
// The checks of validate() and validate_stages().

#include <algorithm>
#include <iterator>
#include <optional>

#include "engine/plan/accesses.h"
#include "engine/plan/happens_before.h"
#include "engine/proof/validate.h"

namespace aliquot {

/// Collects the first 200 defects.
class Defects {
 public:
  explicit Defects(const Plan& plan) : plan_(plan) {}

  void add(DefectKind kind, std::vector<OperationId> operations, std::string sentence) {
    constexpr std::size_t kMost = 200;
    if (found_.size() < kMost) found_.push_back({kind, std::move(operations), std::move(sentence)});
  }
  /// Describes an operation, such as "update h.0 (operation 21)".
  std::string describe(OperationId operation) const;
  /// Describes a buffer, such as "gradients of h.0".
  std::string describe(const PlannedBuffer& buffer) const;

  bool empty() const { return found_.empty(); }
  std::vector<Defect> take() { return std::move(found_); }

 private:
  const Plan& plan_;
  std::vector<Defect> found_;
};

/// Describes a use, such as "use 3 (h.2)".
std::string describe_use(const ModelSpec& model, int32_t use);

/// An operation of one pipeline stage.
struct StageOperation {
  int32_t stage;
  OperationId operation;
};

/// Collects the first 200 defects of all pipeline stages.
class StageDefects {
 public:
  explicit StageDefects(const std::vector<Plan>& stages) : stages_(stages) {}

  void add(DefectKind kind, const std::vector<StageOperation>& at, std::string sentence) {
    constexpr std::size_t kMost = 200;
    if (found_.size() >= kMost) return;
    Defect& defect = found_.emplace_back(Defect{kind, {}, std::move(sentence)});
    std::ranges::transform(at, std::back_inserter(defect.operations), &StageOperation::operation);
  }
  /// Describes an operation, such as "send h.0 of micro-batch 1 (operation 21 of pipeline stage 0)".
  std::string describe(const StageOperation& at) const;

  bool empty() const { return found_.empty(); }
  std::vector<Defect> take() { return std::move(found_); }

 private:
  const std::vector<Plan>& stages_;
  std::vector<Defect> found_;
};

struct Proof {
  const Plan& plan;
  const std::vector<PipelineAction>& passes;  // passes of the plan's pipeline stage, in order
  const HappensBefore& order;
  Accesses& accesses;
  Defects& defects;
};

/// Each of the next five functions returns what is wrong in a plan, or nullopt. They check values that the other checks
/// use as indices, and do not read operations and buffers.
///
/// Checks that the model is valid, and that topologies are complete. Calls invalid_flats().
std::optional<std::string> invalid_tables(const Plan& plan);
/// Checks that each parameter of the model is in one flat buffer of its unit, with the declared name, type,
/// trainability, kind of updates and relation of gradients, and with space for the largest slice. Also checks that flat
/// buffers are sharded over the ranks of a replica.
std::optional<std::string> invalid_flats(const Plan& plan);
/// Checks that the pipeline stage, its virtual stages and the counts in the plan fit the policy and the model. Requires
/// valid tables.
std::optional<std::string> invalid_stage(const Plan& plan);
/// Checks that the policy has an order of passes that pass_order_of() can use. Requires a valid number of pipeline
/// stages.
std::optional<std::string> invalid_order(const Plan& plan);
/// Checks that matrix groups name tensors that exist, with their shapes and flat buffers, and that all matrices of a
/// unit are in one group. Requires valid tables.
std::optional<std::string> invalid_matrix_groups(const Plan& plan);

/// Checks that all indices of operations and buffers are in range, and that waits refer to earlier operations.
/// The other checks require both.
void check_well_formed(const Plan& plan, Defects& defects);
/// Checks that model code runs in the declared order, and units are gathered before they are used and released
/// afterwards.
void check_uses(const Proof& proof);
/// Checks that the collectives of each use follow its model code at once, in the declared order, and that their data
/// lies in buffers of the use.
void check_collectives(const Proof& proof);
/// Checks that quantized shards are made once in each step, before they are gathered.
void check_quantized(const Proof& proof);
/// Checks digests of the state (Policy::check_state). Every flat buffer must have a buffer of digests. Parameters that
/// no update compares must be compared once in each step. This must happen after the last model code that reads them,
/// and before an all-gather overwrites them.
void check_state_digests(const Proof& proof);
/// Checks digests of gradients (Policy::replay_every). The digests of every unit that trains must be computed once in
/// each step, when its gradients are those of the complete micro-batch 0 alone, before sums change them.
void check_gradient_digests(const Proof& proof);
/// Checks that the stage receives the input of each pass once before the pass, and sends the result once after the
/// pass. The sends and receives are with the neighboring pipeline stages.
void check_transfers(const Proof& proof);
/// Checks that every gradient is reduced, included in the norm and applied exactly once.
void check_gradients(const Proof& proof);
/// Checks that every matrix group is sent to its owners and back exactly once, between the norm and the updates of its
/// units.
void check_matrices(const Proof& proof);
/// Checks that buffers are within their memory, and large enough for their contents.
void check_places(const Proof& proof);
/// Returns the minimum size of a buffer. Independent of needed_bytes(), which the schedule writer uses. `node_count`:
/// the number of nodes of the plan's topology, which is slow to compute.
int64_t required_bytes(const Plan& plan, const PlannedBuffer& buffer, int node_count);
/// Checks that offloaded data is copied in before it is used, and copied out after it was changed.
void check_offload(const Proof& proof);
/// A set of groups, with one bit for each GroupId.
using GroupSet = uint32_t;
constexpr GroupSet group_set(GroupId group) { return GroupSet{1} << static_cast<int>(group); }
/// Checks that every buffer names the smallest group with all ranks that access it. `accessed_by`: for each buffer, the
/// groups of its accesses.
void check_groups(const Proof& proof, const std::vector<GroupSet>& accessed_by);
/// Checks that no operation writes bytes that another operation may still access. Calls check_groups() with the
/// accesses.
void check_races(const Proof& proof);

/// Checks that the plans are of the same model, options and mesh, and divide the uses and units of the model. Does not
/// read operations and buffers.
void check_cut(const std::vector<Plan>& stages, StageDefects& defects);
/// Checks that the schedules together compute each use once for each micro-batch, and each use on its own pipeline
/// stage. Also checks that a schedule has operations and buffers only for the units and uses of its pipeline stage.
/// Requires plans without defects of their own and without defects that check_cut() finds.
void check_work(const std::vector<Plan>& stages, StageDefects& defects);

}  // namespace aliquot
