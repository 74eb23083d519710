#pragma once
// The roles of a schedule's buffers, and the facts that hold for every buffer of one.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/system/ledger.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What a buffer is for.
enum class Role : uint8_t {
  kParameters,  // as computed with: stage 3: the own shard; else the whole, own shard in its place. Always there
  kMaster,  // what the fp32 master needs beside a 16-bit copy, of the own shard (stage 0: of the whole). Always there
  kOptimizer,         // all states of the own shard (stage 0: of the whole). Always there
  kSegments,          // on GPUs: the update's table of which parameter lies where in the own shard. Always there
  kGathered,          // slot: the whole unit, from its gather to its release
  kGradients,         // whole: from the first backward that writes to the reduce; always there at stages 0 and 1
  kReducedGradients,  // the own shard of the sum, from the first reduce to the update
  kSentGradients,     // the whole gradients as they are sent, where that is another type
  kReplicaPartialSums,  // with replicas: the own shard of this one's sum in fp32, as peers read it, until they exchanged theirs
  kMicroBatchSum,        // the own shard of one micro-batch's sum, to be added to those before it
  kBlockSquares,         // a sum of squares a block of the own shard, for the norm
  kNormParts,            // every rank's parts of the norm
  kStagedShard,          // where parameters are offloaded: the own shard, as a gather reads it
  kOffloadedParameters,  // where offloaded ones lie between uses; the roles of those names are slots then. Always there
  kOffloadedMaster,
  kOffloadedOptimizer,
  kOutputActivations,    // of a use, not of a flat: what its forward makes for the next
  kSavedActivations,     // of a use: what its forward, or its recompute, leaves for its backward
  kScratch,              // of a use, while it runs
  kActivationGradients,  // nobody's: what backward hands from use to use, within a micro-batch
  kMuonDirections,  // what matrices are to be moved along, fp32, of the own shard (stage 0: of the whole), until the update
  kOwnedMatrices,         // of a group, not of a flat: those that this rank owns, whole
  kOrthogonalizeScratch,  // of a group: what its owners work in
  kQuantizedShards,       // of the ranks at the own place on each node, their own among them, in 8 bits. Always there
  kQuantizedParameters,   // all ranks', while a gather decodes them
  kNodePartialSums,       // what a node's ranks have of the gradients that this one adds up for it
  kFp32Sums,  // their sums in fp32, a part for each node; then other nodes' of the own shard. With replicas: theirs
  kQuantizedSums,          // a part for each node, as they go there
  kQuantizedReceived,      // a part from each node
  kErrorFeedbackResidual,  // what encoding sums left out, to be added to the next ones. Always there
  kReduceStaging,          // of no flat: staging of all reduces between nodes of hosts (ReduceStaging)
  kExchangeStaging,        // of no flat: staging of all exchanges between nodes of hosts
  kTreeLevel0,  // reproducible: the sum of one micro-batch that waits for its neighbour; of 2, 4, ... in the 19 after it
};
inline constexpr int kTreeLevelCount = 20;

/// What memory a buffer's offset counts in. In the range that ranks share, from the start of the whole flat's place there.
/// What peers of other replicas read lies apart, since memory is made by the group that reads it.
enum class Space : uint8_t { kArena, kSharedRange, kOffloadedState, kOffloadedParameters, kReplicateGroup };
inline constexpr int kSpaceCount = 5;

/// What PlannedBuffer::flat is an index of; kNone: of nothing, it is -1.
enum class Owner : uint8_t { kFlat, kUse, kMatrixGroup, kNone };

/// How many elements of its flat a buffer holds: the own shard, all, at stage 3 the shard and else all, or what the rank updates.
enum class ElementCount : uint8_t { kOther, kShard, kAll, kStored, kUpdated };
/// And which type they have: the policy's precision says more. kPartial: as a reduce adds up (ReduceRecipe).
enum class ElementType : uint8_t { kOther, kCompute, kMaster, kGradients, kSent, kPartial, kFloat32 };

struct RoleInfo {
  Role role;
  std::string_view name;
  char letter;  // of its buffers in the text of a schedule; 0: they are left out of it
  Owner owner;
  Category category;  // the usual one: StepWriter::category_of() has the exceptions
  /// kReplicateGroup: where there are replicas, else the arena. Parameters lie in the shared range where gathers are views.
  Space space = Space::kArena;
  /// kOther: needed_bytes() has a rule for the role.
  ElementCount count = ElementCount::kOther;
  ElementType type = ElementType::kOther;
  std::optional<Role> home = {};  // the role that its bytes have between uses, where they are offloaded
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
             ElementType::kGradients},
    RoleInfo{Role::kReducedGradients, "reduced", 'r', Owner::kFlat, Category::kGradients, Space::kReplicateGroup,
             ElementCount::kShard, ElementType::kGradients},
    RoleInfo{Role::kSentGradients, "sent", 's', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kAll, ElementType::kSent},
    RoleInfo{Role::kReplicaPartialSums, "across", 'x', Owner::kFlat, Category::kCommunication, Space::kReplicateGroup,
             ElementCount::kShard, ElementType::kFloat32},
    RoleInfo{Role::kMicroBatchSum, "partial", 't', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kShard, ElementType::kPartial},
    RoleInfo{Role::kBlockSquares, "squares", 0, Owner::kFlat, Category::kCommunication, Space::kReplicateGroup},
    RoleInfo{Role::kNormParts, "norm parts", 'n', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kStagedShard, "offered", 'f', Owner::kFlat, Category::kStaging, Space::kArena, ElementCount::kStored,
             ElementType::kCompute, Role::kOffloadedParameters},
    RoleInfo{Role::kOffloadedParameters, "parameters at home", 'P', Owner::kFlat, Category::kParameters,
             Space::kOffloadedParameters, ElementCount::kStored, ElementType::kCompute},
    RoleInfo{Role::kOffloadedMaster, "master at home", 'M', Owner::kFlat, Category::kOptimizer, Space::kOffloadedState,
             ElementCount::kUpdated, ElementType::kMaster},
    RoleInfo{Role::kOffloadedOptimizer, "optimizer at home", 'O', Owner::kFlat, Category::kOptimizer,
             Space::kOffloadedState},
    RoleInfo{Role::kOutputActivations, "output", 'a', Owner::kUse, Category::kActivations},
    RoleInfo{Role::kSavedActivations, "kept", 'k', Owner::kUse, Category::kActivations},
    RoleInfo{Role::kScratch, "scratch", 'z', Owner::kUse, Category::kActivations},
    RoleInfo{Role::kActivationGradients, "backward", 'b', Owner::kNone, Category::kActivations},
    RoleInfo{Role::kMuonDirections, "blended", 'd', Owner::kFlat, Category::kCommunication, Space::kArena,
             ElementCount::kUpdated, ElementType::kFloat32},
    RoleInfo{Role::kOwnedMatrices, "matrices", 'y', Owner::kMatrixGroup, Category::kCommunication},
    RoleInfo{Role::kOrthogonalizeScratch, "iteration", 'i', Owner::kMatrixGroup, Category::kCommunication},
    RoleInfo{Role::kQuantizedShards, "encoded shards", 'E', Owner::kFlat, Category::kParameters},
    RoleInfo{Role::kQuantizedParameters, "encoded whole", 'e', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kNodePartialSums, "met", 'j', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kFp32Sums, "node sums", 'h', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kQuantizedSums, "encoded sums", 'c', Owner::kFlat, Category::kCommunication, Space::kReplicateGroup},
    RoleInfo{Role::kQuantizedReceived, "encoded received", 'v', Owner::kFlat, Category::kCommunication,
             Space::kReplicateGroup},
    RoleInfo{Role::kErrorFeedbackResidual, "carried", 'C', Owner::kFlat, Category::kCommunication},
    RoleInfo{Role::kReduceStaging, "reduce staging", 'R', Owner::kNone, Category::kCommunication},
    RoleInfo{Role::kExchangeStaging, "exchange staging", 'X', Owner::kNone, Category::kCommunication,
             Space::kReplicateGroup},
    RoleInfo{Role::kTreeLevel0, "level", 'l', Owner::kFlat, Category::kCommunication, Space::kArena,
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
    "a row of kRoleTable is not at the place of its role, or has the letter of another");

/// All levels share the last row.
constexpr const RoleInfo& info(Role role) {
  return kRoleTable[std::min(static_cast<std::size_t>(role), kRoleTable.size() - 1)];
}
constexpr Role tree_level_role(int level) { return static_cast<Role>(static_cast<int>(Role::kTreeLevel0) + level); }
/// Negative for every other role.
constexpr int tree_level_of(Role role) { return static_cast<int>(role) - static_cast<int>(Role::kTreeLevel0); }
std::string name(Role role);

/// The role that a role's bytes have between uses, where it is offloaded; kParameters, kStagedShard, kMaster and kOptimizer have one.
constexpr std::optional<Role> offloaded_role_of(Role role) { return info(role).home; }
constexpr bool is_offloaded_role(Role role) {
  return info(role).space == Space::kOffloadedParameters || info(role).space == Space::kOffloadedState;
}
constexpr bool belongs_to_use(Role role) { return info(role).owner == Owner::kUse; }
constexpr bool belongs_to_matrix_group(Role role) { return info(role).owner == Owner::kMatrixGroup; }
/// Whether such buffers belong to no use, group or flat; their PlannedBuffer::flat is -1.
constexpr bool has_no_owner(Role role) { return info(role).owner == Owner::kNone; }
/// Whether the model declares what the role's buffers must hold.
constexpr bool is_activation(Role role) { return info(role).category == Category::kActivations; }

}  // namespace aliquot
#pragma GCC visibility pop
