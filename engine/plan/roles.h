#pragma once
// The roles of buffers, and a table of the properties that each role determines.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/system/ledger.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What a buffer contains. A persistent buffer exists during the whole step and between steps. A slot is memory that
/// one unit after another uses. "The shard" is this rank's shard of the flat buffer. At ZeRO stage 0, each rank updates
/// all elements. Buffers of updated values then hold all elements in place of the shard.
enum class Role : uint8_t {
  kParameters,           // persistent: values that the model reads (the shard at ZeRO stage 3, else all elements)
  kMaster,               // persistent: fp32 masters of the shard, or the bits that the 16-bit copy lacks
  kOptimizer,            // persistent: all optimizer states of the shard
  kSegments,             // persistent: on GPUs, tables of the pieces that the update changes and kCompareState compares
  kGathered,             // slot: full parameters of a unit, from its gather to its release
  kGradients,            // full gradients, from the first backward to the reduce; persistent at ZeRO stages 0 and 1
  kReducedGradients,     // the shard of the sum over ranks, from the first reduce to the update
  kSentGradients,        // full gradients in the type that ranks send, if it differs from that of kGradients
  kReplicaPartialSums,   // with replicas: the shard of this replica's sum, fp32, until the replica all-reduce
  kMicroBatchSum,        // the shard of the sum of one micro-batch, before it is added to earlier sums
  kBlockSquares,         // sums of squares of the blocks of the shard, for the norm
  kNormParts,            // the contributions of all ranks to the gradient norm
  kNormRuns,             // persistent: on GPUs, the table of the blocks whose sums are this rank's part of the norm
  kNormPartialSums,      // on GPUs: partial sums of long runs of blocks, for the norm
  kStagedShard,          // with offloaded parameters: slot for the shard, from which gathers read
  kOffloadedParameters,  // persistent: stored copy of offloaded parameters. kParameters is then a slot
  kOffloadedMaster,      // persistent: stored copy of offloaded masters. kMaster is then a slot
  kOffloadedOptimizer,   // persistent: stored copy of offloaded optimizer states. kOptimizer is then a slot
  kOutputActivations,    // owned by a use: output of its forward, also on the stage that received it as input
  kSavedActivations,     // owned by a use: written by its forward or recompute, read by its backward
  kScratch,              // owned by a use: temporary memory while it runs
  kActivationGradients,  // no owner: gradients of activations, passed from use to use and from stage to stage
  kWeightInputs,         // owned by a use: written by its kBackwardInput, read by its kBackwardWeights
  kMuonDirections,       // update directions of the matrices of the shard, fp32, from the momentum to the update
  kOwnedMatrices,        // owned by a matrix group: the full matrices that this rank owns
  kOrthogonalizeScratch,   // owned by a matrix group: temporary memory of kOrthogonalize
  kQuantizedShards,        // persistent: 8-bit shards of the ranks that have this rank's index on their node
  kQuantizedParameters,    // 8-bit shards of all ranks, while a gather decodes them
  kNodePartialSums,        // gradients received from the ranks of this node, for the parts that this rank adds
  kFp32Sums,               // fp32 parts: sums over this node, later decoded sums (with replicas: only decoded sums)
  kQuantizedSums,          // 8-bit sums to send, one part per node (with replicas: per replica)
  kQuantizedReceived,      // 8-bit sums received, one part per node (with replicas: per replica)
  kErrorFeedbackResidual,  // persistent: rounding errors of quantized sums, added to the next sums
  kStateDigests,         // persistent: digests of the blocks of parameters, masters and optimizer states, in this order
  kGradientDigests,      // persistent: digests of the blocks of full gradients, of this rank and of a replay
  kSumDigests,           // persistent: digests of the blocks of sums over the shard group: see RepeatedSums
  kReplicaSumDigests,    // persistent: digests of the blocks of sums over replicas: see RepeatedSums
  kRepeatedSums,         // sums over the shard group that this rank repeats for another rank, for their digests
  kRepeatedReplicaSums,  // the same for sums over replicas
  kReduceStaging,        // no owner: staging of all reduces between host nodes or over NCCL (ReduceStaging)
  kExchangeStaging,      // no owner: the same for all replica all-reduces
  kCollectiveStaging,    // no owner: the same for all collectives of uses
  kTensorSumStaging,     // no owner: the same for all sums over the tensor group
  /// With Policy::reproducible: the sum of 1 micro-batch, until it is added to the next sum. The next 19 roles have
  /// sums of 2, 4, 8, ... micro-batches.
  kTreeLevel0,
};
inline constexpr int kTreeLevelCount = 20;

/// The memory to which the offset of a buffer refers. In kSharedRange, the offset is that of the flat buffer, which
/// contains the shards of all ranks.
enum class Space : uint8_t { kArena, kSharedRange, kOffloadedState, kOffloadedParameters };
inline constexpr int kSpaceCount = 4;

/// What PlannedBuffer::flat is an index of. kNone: the index is -1.
enum class Owner : uint8_t { kFlat, kUse, kMatrixGroup, kNone };

/// How many elements of its flat buffer a buffer holds. kStored: the shard at ZeRO stage 3, else all. kUpdated: the
/// elements that the rank updates (Plan::updated_count()). kOther: none of these counts applies. needed_bytes() then
/// has a special rule for the role.
enum class ElementCount : uint8_t { kOther, kShard, kAll, kStored, kUpdated };
/// The element type of a buffer, as a field of Precision. kPartial: partial_dtype() (engine/plan/reduce_recipe.h).
/// kOther: the role has ElementCount::kOther, so its size does not depend on this type.
enum class ElementType : uint8_t { kOther, kCompute, kMaster, kGradients, kSent, kPartial, kFloat32 };

struct RoleInfo {
  Role role;
  std::string_view name;  // name in messages and in the ledger
  char letter;            // first letter of its buffers' names in the text of a schedule; 0: the text omits them
  Owner owner;
  Category category;            // the default; StepWriter::category_of() has the exceptions
  Space space = Space::kArena;  // the default; with views, parameters are in kSharedRange
  ElementCount count = ElementCount::kOther;
  ElementType type = ElementType::kOther;
  std::optional<Role> home = {};  // role of the stored copy, if the data is offloaded
  /// There may be one buffer for each micro-batch in flight. Activations always have one for each. Gradients have one
  /// for each if backward passes of several micro-batches interleave.
  bool per_micro_batch = false;
};

inline constexpr std::array kRoleTable = {
    RoleInfo{Role::kParameters, "parameters", 'p', Owner::kFlat, Category::kParameters, Space::kArena,
             ElementCount::kStored, ElementType::kCompute, Role::kOffloadedParameters},
    RoleInfo{Role::kMaster, "master", 'm', Owner::kFlat, Category::kOptimizer, Space::kArena, ElementCount::kUpdated,
             ElementType::kMaster, Role::kOffloadedMaster},
    RoleInfo{Role::kOptimizer, "optimizer", 'o', Owner::kFlat, Category::kOptimizer, Space::kArena,
             ElementCount::kOther, ElementType::kOther, Role::kOffloadedOptimizer},
    RoleInfo{Role::kSegments, "segments", 'u', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kGathered, "gathered", 'w', Owner::kFlat, Category::kSlots, Space::kArena, ElementCount::kAll,
             ElementType::kCompute},
    RoleInfo{Role::kGradients, "gradients", 'g', Owner::kFlat, Category::kSlots, Space::kArena, ElementCount::kAll,
             ElementType::kGradients, std::nullopt, true},
    RoleInfo{Role::kReducedGradients, "reduced gradients", 'r', Owner::kFlat, Category::kGradients, Space::kArena,
             ElementCount::kShard, ElementType::kGradients},
    RoleInfo{Role::kSentGradients, "sent gradients", 's', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kAll, ElementType::kSent},
    RoleInfo{Role::kReplicaPartialSums, "replica partial sums", 'x', Owner::kFlat, Category::kCommunication,
             Space::kArena, ElementCount::kShard, ElementType::kFloat32},
    RoleInfo{Role::kMicroBatchSum, "micro-batch sum", 't', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kShard, ElementType::kPartial},
    RoleInfo{Role::kBlockSquares, "block squares", 0, Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kNormParts, "norm parts", 'n', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kNormRuns, "norm runs", 0, Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kNormPartialSums, "norm partial sums", 0, Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kStagedShard, "staged shard", 'f', Owner::kFlat, Category::kStaging, Space::kArena,
             ElementCount::kStored, ElementType::kCompute, Role::kOffloadedParameters},
    RoleInfo{Role::kOffloadedParameters, "offloaded parameters", 'P', Owner::kFlat, Category::kParameters,
             Space::kOffloadedParameters, ElementCount::kStored, ElementType::kCompute},
    RoleInfo{Role::kOffloadedMaster, "offloaded master", 'M', Owner::kFlat, Category::kOptimizer,
             Space::kOffloadedState, ElementCount::kUpdated, ElementType::kMaster},
    RoleInfo{Role::kOffloadedOptimizer, "offloaded optimizer", 'O', Owner::kFlat, Category::kOptimizer,
             Space::kOffloadedState},
    RoleInfo{.role = Role::kOutputActivations,
             .name = "output",
             .letter = 'a',
             .owner = Owner::kUse,
             .category = Category::kActivations,
             .per_micro_batch = true},
    RoleInfo{.role = Role::kSavedActivations,
             .name = "kept",
             .letter = 'k',
             .owner = Owner::kUse,
             .category = Category::kActivations,
             .per_micro_batch = true},
    RoleInfo{Role::kScratch, "scratch", 'z', Owner::kUse, Category::kActivations},
    RoleInfo{.role = Role::kActivationGradients,
             .name = "backward",
             .letter = 'b',
             .owner = Owner::kNone,
             .category = Category::kActivations,
             .per_micro_batch = true},
    RoleInfo{.role = Role::kWeightInputs,
             .name = "weight inputs",
             .letter = 'q',
             .owner = Owner::kUse,
             .category = Category::kActivations,
             .per_micro_batch = true},
    RoleInfo{Role::kMuonDirections, "Muon directions", 'd', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kUpdated, ElementType::kFloat32},
    RoleInfo{Role::kOwnedMatrices, "owned matrices", 'y', Owner::kMatrixGroup, Category::kCommunication},
    RoleInfo{Role::kOrthogonalizeScratch, "orthogonalize scratch", 'i', Owner::kMatrixGroup, Category::kCommunication},
    RoleInfo{Role::kQuantizedShards, "quantized shards", 'E', Owner::kFlat, Category::kParameters},
    RoleInfo{Role::kQuantizedParameters, "quantized parameters", 'e', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kNodePartialSums, "node partial sums", 'j', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kFp32Sums, "fp32 sums", 'h', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kQuantizedSums, "quantized sums", 'c', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kQuantizedReceived, "quantized received", 'v', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kErrorFeedbackResidual, "error-feedback residual", 'C', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kStateDigests, "state digests", 'D', Owner::kFlat, Category::kOptimizer},
    RoleInfo{Role::kGradientDigests, "gradient digests", 'G', Owner::kFlat, Category::kGradients},
    RoleInfo{Role::kSumDigests, "sum digests", 'S', Owner::kFlat, Category::kGradients},
    RoleInfo{Role::kReplicaSumDigests, "replica sum digests", 'U', Owner::kFlat, Category::kGradients},
    RoleInfo{Role::kRepeatedSums, "repeated sums", 'T', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kShard, ElementType::kPartial},
    RoleInfo{Role::kRepeatedReplicaSums, "repeated replica sums", 'V', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kReduceStaging, "reduce staging", 'R', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kExchangeStaging, "exchange staging", 'X', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kCollectiveStaging, "collective staging", 'Y', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kTensorSumStaging, "tensor sum staging", 'Z', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kTreeLevel0, "tree level", 'l', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kShard, ElementType::kFloat32},
};
inline constexpr std::size_t kRoleCount = kRoleTable.size() - 1 + kTreeLevelCount;
static_assert(
    [] {
      for (std::size_t i = 0; i < kRoleTable.size(); ++i) {
        const RoleInfo& row = kRoleTable[i];
        if (row.role != static_cast<Role>(i)) return false;
        if (row.letter != 0 && std::ranges::count(kRoleTable, row.letter, &RoleInfo::letter) != 1) return false;
      }
      return true;
    }(),
    "a row of kRoleTable is not at the index of its role, or two rows have the same letter");

/// Returns the row of the role. All tree levels share the last row of the table.
constexpr const RoleInfo& info(Role role) {
  return kRoleTable[std::min(static_cast<std::size_t>(role), kRoleTable.size() - 1)];
}
constexpr Role tree_level_role(int level) { return static_cast<Role>(static_cast<int>(Role::kTreeLevel0) + level); }
/// Returns the tree level of the role. Negative if `role` is not a tree level.
constexpr int tree_level_of(Role role) { return static_cast<int>(role) - static_cast<int>(Role::kTreeLevel0); }
std::string name(Role role);

/// The role of the stored copy if data of `role` is offloaded. Only kParameters, kStagedShard, kMaster and kOptimizer
/// have one.
constexpr std::optional<Role> offloaded_role_of(Role role) { return info(role).home; }
constexpr bool is_offloaded_role(Role role) {
  return info(role).space == Space::kOffloadedParameters || info(role).space == Space::kOffloadedState;
}
constexpr bool belongs_to_use(Role role) { return info(role).owner == Owner::kUse; }
constexpr bool belongs_to_matrix_group(Role role) { return info(role).owner == Owner::kMatrixGroup; }
/// Whether buffers of this role have no owner. Their PlannedBuffer::flat is then -1.
constexpr bool has_no_owner(Role role) { return info(role).owner == Owner::kNone; }
/// Whether buffers of this role belong to the category of activations. The model declares their sizes.
constexpr bool is_activation(Role role) { return info(role).category == Category::kActivations; }

}  // namespace aliquot
#pragma GCC visibility pop
