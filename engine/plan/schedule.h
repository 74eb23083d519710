#pragma once
// A training step as data: the operations of one rank in issue order, with their lanes, waits and buffers.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/matrix_groups.h"
#include "engine/plan/mesh.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/policy.h"
#include "engine/plan/roles.h"
#include "engine/plan/verbs.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

using OperationId = int32_t;
using BufferId = int32_t;
inline constexpr BufferId kNoBuffer = -1;

/// A dependency on the end of `operation`. Dependencies on earlier operations of the same lane and rank are never
/// listed, because a lane runs its operations in order.
struct Wait {
  OperationId operation;
  GroupId of = GroupId::kRank;    // the ranks whose operation must have ended: this rank, or a group
  bool of_previous_step = false;  // wait for the operation of the previous step

  friend bool operator==(const Wait&, const Wait&) = default;
};

/// One operation. `operand` is an index, and VerbInfo::operand says what it is an index of. The operand of the norm is
/// 0.
struct Operation {
  Verb verb;
  GroupId group;  // the ranks that take part
  Lane lane;
  int32_t operand;
  int32_t micro_batch;
  std::vector<Wait> after;
  /// For a send or receive, the offset of the data in the arena of the other stage; -1: not known yet.
  int64_t peer_offset_bytes = -1;
  /// For kUseCollective, the index in UseActivations::collectives.
  int32_t collective = -1;
};

/// A range of memory with a lifetime: it is in use from operation `first` to operation `last`, in issue order. A
/// persistent buffer (`always`) lives from operation 0 to the last one.
struct PlannedBuffer {
  Role role;
  Category category;
  int32_t flat;  // index of the owner: a flat buffer, use or matrix group, see RoleInfo::owner; -1: no owner
  int32_t micro_batch = -1;  // see RoleInfo::per_micro_batch; -1: all micro-batches share the buffer
  /// The smallest group that contains all ranks which access the buffer during the step. For data that a transfer sends
  /// or receives, the transfer's group.
  GroupId group = GroupId::kRank;
  Space space = Space::kArena;
  bool booked = true;   // counted in the ledger of the rank's device; false for files and, with a GPU, for host memory
  bool always = false;  // persistent: exists during the whole step and between steps
  int64_t size_bytes = 0;
  int64_t offset_bytes = 0;
  OperationId first = 0, last = 0;
};

struct Schedule {
  std::vector<Operation> operations = {};
  std::vector<PlannedBuffer> buffers = {};
  /// Size of each space, per rank. The size of Space::kSharedRange is that for all ranks together.
  std::array<int64_t, kSpaceCount> space_bytes = {};
  /// Staging memory between steps, for initialization, for reading tensors, and for the caller
  /// (Policy::between_steps_bytes). They use it one after another.
  int64_t stream_bytes = 0;
  bool view = false;  // gathers are views of the shared range
  bool accumulate_into_shard = false;
  bool reduces_in_place = false;  // the reduced shard overwrites its part of the full gradients
  bool sums_in_levels = false;    // micro-batches are added in a binary tree, not one after another
  int zero_stage = 0;
  int micro_batch_count = 1;
  int micro_batches_in_flight = 1;  // maximum number of micro-batches whose activations exist at the same time

  int64_t bytes(Space space) const { return space_bytes[static_cast<std::size_t>(space)]; }
  int64_t& bytes(Space space) { return space_bytes[static_cast<std::size_t>(space)]; }
};

/// Red zones of the checking mode: blocks between the tensors of a flat buffer, and the minimum bytes after
/// activations.
inline constexpr int64_t kRedZoneBlocks = 1, kRedZoneBytes = 1024;
/// Alignment of buffers in the checking mode or with disk offload: memory protection and direct I/O work on whole
/// pages.
inline constexpr int64_t kPlacePageBytes = 4096;

/// Returns for each copy operation its slots: those that a copy-in fills, or that a copy-out writes back. Empty for
/// other operations.
std::vector<std::vector<BufferId>> copied_slots(const Schedule& schedule);

/// With Schedule::sums_in_levels: returns how many stored partial sums are merged after micro-batch `micro_batch`.
int closed_levels(int32_t micro_batch);

/// Returns the topology of one pipeline stage, if `stage_count` groups of contiguous ranks divide the world. Throws
/// UsageError if they do not have equal size.
Topology topology_of_stage(const Topology& world, int stage_count, int stage);

/// Returns the topology of the ranks of a stage that have tensor coordinate 0, if groups of `tensor` contiguous ranks
/// divide the stage. Throws UsageError if they do not, or if the placements on nodes differ between coordinates.
Topology topology_of_data_ranks(const Topology& stage, int tensor);
/// Whether a tensor group has ranks on several nodes. The collectives of its uses are then slow.
bool tensor_groups_cross_nodes(const Topology& world, int tensor);

/// Returns the topology of one shard group, if `replica_count` groups of contiguous ranks divide `data`, the result of
/// topology_of_data_ranks(). Throws UsageError if they do not have equal size, or if their placements on nodes differ.
Topology topology_of_shard_group(const Topology& data, int replica_count);

/// Returns the topology of the ranks of `data` that hold shard `shard`, one of each replica.
Topology topology_of_replicate_group(const Topology& data, int replica_count, int shard);

/// The maximum number of forward passes of uses in a step: the number of uses times the number of micro-batches. Plans
/// with more would take several GB of host memory.
inline constexpr int64_t kMaxForwardPasses = int64_t{1} << 20;

struct Plan;
/// Whether reduces between nodes send 8-bit values. Always false with replicas: see encodes_exchanges().
bool encodes_gradients(const Plan& plan);
/// Whether replicas send one another their sums as 8-bit values.
bool encodes_exchanges(const Plan& plan);
/// Whether nodes have several ranks. If so, quantized collectives have a step within the node.
bool has_several_ranks_per_node(const Plan& plan);

/// Consecutive uses of the model that a pipeline stage runs in one pass: [first_use, end_use).
struct VirtualStage {
  int32_t index = 0;
  int32_t first_use = 0, end_use = 0;

  bool is_first() const { return index == 0; }
  int32_t last_use() const { return end_use - 1; }
};

/// One of `count` pipeline stages. Each runs the same number of virtual stages. With `tied_ends`, the model's first
/// uses share a unit with its last ones, so the last pipeline stage also runs virtual stage 0 (see
/// PipelineShape::tied_ends).
struct PipelineStage {
  int32_t index = 0, count = 1;
  int32_t run_count = 1;  // number of virtual stages of the whole pipeline
  bool tied_ends = false;
  std::vector<VirtualStage> runs = {};  // the virtual stages that this pipeline stage runs, ascending

  bool is_last() const { return index + 1 == count; }
  bool is_last(const VirtualStage& run) const { return run.index + 1 == run_count; }
  /// Whether the last pipeline stage sends activations to the first one.
  bool is_ring() const { return run_count > count; }
  /// The first and the last use that the stage runs in a step with one micro-batch.
  int32_t first_use() const { return runs.front().first_use; }
  int32_t last_use() const { return runs.back().last_use(); }
  int32_t use_count() const;
  const VirtualStage& run_of_use(int32_t use) const;
  /// Returns the element of `runs` whose VirtualStage::index is `virtual_stage`.
  const VirtualStage& run(int32_t virtual_stage) const;
};

/// Everything that is decided before a step, for the ranks of one pipeline stage: the layout, the schedule and its
/// buffers, for a checked model and policy. The plan has the flat buffers of all units, but memory and operations only
/// for the units that its stage uses.
struct Plan {
  ModelSpec model;
  Policy policy;
  Topology topology;  // the ranks of one shard group of the stage (all shard groups are alike)
  Topology world;     // all ranks
  PipelineStage stage;
  Topology data_topology;          // the ranks of the stage with tensor coordinate 0
  std::vector<bool> unit_is_here;  // for each unit, whether the stage uses it
  std::vector<FlatSpec> flats;
  std::vector<std::vector<int32_t>> flats_of_unit;
  std::vector<MatrixGroup> matrix_groups;
  Schedule schedule;
  std::string choice = {};  // with a memory budget: text about the chosen options; else empty

  /// Elements of the flat buffer that each rank updates: its shard, or, at ZeRO stage 0, all.
  int64_t updated_count(int32_t flat) const {
    return flats[flat].layout.shard_count() * (schedule.zero_stage == 0 ? topology.rank_count() : 1);
  }
  /// Bytes of optimizer state per 256 elements of the flat buffer.
  int64_t state_bytes_per_block(int32_t flat) const {
    return flats[flat].matrices ? policy.matrix_updates->state_bytes_per_block : policy.state_bytes_per_block;
  }

  Mesh mesh() const {
    return {.pipeline = policy.pipeline,
            .replica = policy.replica_count,
            .shard = topology.rank_count(),
            .tensor = policy.tensor,
            .ring = stage.is_ring()};
  }
  /// With Policy::check_state, whether kCompareState compares parameters of the flat buffer: those that this rank
  /// stores and does not update. They are the shards of other ranks at ZeRO stages 1 and 2, and frozen parameters.
  bool compares_outside_updates(int32_t flat) const {
    const bool holds_other_shards = (schedule.zero_stage == 1 || schedule.zero_stage == 2) && topology.rank_count() > 1;
    const bool is_empty = flats[flat].layout.flat_count() == 0;
    return policy.check_state && is_here(flat) && !is_empty && (holds_other_shards || !flats[flat].trainable);
  }
  /// Whether the stage uses the unit of the flat buffer.
  bool is_here(int32_t flat) const { return unit_is_here[flats[flat].unit]; }
  /// Whether the stage updates the flat buffer.
  bool trains(int32_t flat) const { return flats[flat].trainable && is_here(flat); }
  /// Whether the gradients of the flat buffer are added over the tensor group.
  bool sums_over_tensor(int32_t flat) const { return trains(flat) && flats[flat].gradients == TensorGradients::kSum; }
  /// Whether all sums over ranks must be added in tree order. Otherwise NCCL chooses an order, and it may differ
  /// between groups. Replays compare the results of different groups and ranks, so they need one order.
  bool adds_in_tree_order() const { return policy.reproducible || policy.replay_every != 0; }
  /// Whether reduces of the flat buffer must add in tree order. The copies of a full parameter on the ranks of a tensor
  /// group need the same order.
  bool adds_in_tree_order(int32_t flat) const {
    return adds_in_tree_order() || (policy.tensor > 1 && flats[flat].gradients != TensorGradients::kSlice);
  }
  /// Whether the norm is exact: see ExactNorm. Updates in backward do not use the norm.
  bool has_exact_norm() const { return policy.reproducible && policy.updates() && !policy.update_in_backward; }
  /// The buffer with the gradients that the update reads. If it is kGradients, it has the full parameters' gradients.
  Role updated_gradients() const {
    return schedule.zero_stage == 0 || schedule.reduces_in_place ? Role::kGradients : Role::kReducedGradients;
  }
  /// Greater than every PlannedBuffer::flat. (There are never more matrix groups than flats.)
  std::size_t owner_count() const { return std::max(flats.size(), model.uses.size()); }
};

/// Makes a plan without a pipeline. Depends on nothing but its arguments. Throws UsageError if options of the policy
/// exclude one another, or if the policy has several pipeline stages.
Plan plan(const ModelSpec& model, const Policy& policy, const Topology& topology);

/// Returns for each use whether the stage recomputes its forward before its backward.
std::vector<bool> recomputed_uses(const Plan& plan);
std::vector<bool> recomputed_uses(const ModelSpec& model, const Policy& policy, const PipelineStage& stage);

/// Returns for each use whether a backward pass in two parts also splits the backward of the use. If not, the first
/// part of the pass runs the whole backward. A use is split if its declaration allows it, one of its units trains, and
/// none of its units has other uses. The gradients of a unit with several uses are thus added in one order.
std::vector<bool> split_uses(const Plan& plan);

/// Makes the plans of all pipeline stages, in order. Throws like plan().
std::vector<Plan> plan_pipeline(const ModelSpec& model, const Policy& policy, const Topology& topology);

/// Returns the plan of an evaluation, whose step is one forward pass. It uses the persistent buffers of `training` at
/// the same offsets. Its gathers have their own slots in the arena, since training and evaluation never run at the same
/// time. With several pipeline stages, call link_stages() with the results of all stages.
Plan evaluation_of(const Plan& training);
/// Returns evaluation_of() for all pipeline stages, after link_stages(). Faster than separate calls, because all
/// pipeline stages share the computed passes.
std::vector<Plan> evaluations_of(const std::vector<Plan>& stages);

/// Returns the plan of a replay (Policy::replay_every), whose step is micro-batch 0 of `training`, forward and
/// backward, in the same order of passes. Each unit ends with kDigestGradients instead of a reduce. Uses the persistent
/// buffers of `training` at the same offsets. Call link_stages() as for evaluation_of().
Plan replay_of(const Plan& training);
/// Returns replay_of() for all pipeline stages, after link_stages().
std::vector<Plan> replays_of(const std::vector<Plan>& stages);

/// Sets Operation::peer_offset_bytes of all sends and receives. `stages` are the plans of all pipeline stages, in
/// order.
void link_stages(std::vector<Plan>& stages);

/// The number of bytes that a send or receive transfers.
int64_t transfer_bytes(const ModelSpec& model, const Operation& operation);

/// Returns the units of the operation's operand, in order. Empty for the norm.
std::vector<UnitId> units_of(const Plan& plan, const Operation& operation);

/// Returns the verb and the units of an operation: "forward h.0+h.1".
std::string title(const Plan& plan, OperationId operation);

/// Returns the name of the unit that a buffer belongs to: the unit of its flat buffer, the first unit of its use or
/// matrix group, or "all units" if it has no owner.
std::string_view owner(const Plan& plan, const PlannedBuffer& buffer);

/// Prints one operation per line: number, verb, units, micro-batch, lane, buffers that begin and end, waits.
std::string text(const Plan& plan);

/// Maximum number of copies of a chunk while ranks stream a tensor: the packed copy of this rank, the input of the
/// gather, its output, the output split by rank, the assembled chunk, and the scratch memory of a PieceAccess.
inline constexpr int64_t kStreamCopies = 6;

/// The planned memory in use, by category, at each operation in issue order, and its peaks. Peaks include the staging
/// memory between steps.
struct Account {
  BytesByCategory peak{};       // the peak of each category
  int64_t peak_bytes = 0;       // the peak of the sum of all categories
  int64_t step_peak_bytes = 0;  // the peak of the sum of all categories, during operations
  OperationId peak_operation = 0;
  std::vector<BytesByCategory> at;  // memory in use during each operation
  int64_t elsewhere_bytes = 0;      // size of data in files or, with a GPU, in host memory

  bool peaks_between_steps() const { return peak_bytes > step_peak_bytes; }
};
Account account(const Schedule& schedule);
/// Returns the total size in bytes of the persistent buffers that the ledger counts.
int64_t persistent_bytes(const Schedule& schedule);

/// Returns when memory use peaks: the title of an operation, or "between steps".
std::string peak_moment(const Plan& plan, const Account& account);

/// Returns what all ranks must agree on, as lines: the model, the options, then text().
std::string description(const Plan& plan);
/// Returns a hash of description() and all offsets and sizes. Ranks compare it in Engine::materialize().
uint64_t hash(const Plan& plan);

}  // namespace aliquot
#pragma GCC visibility pop
