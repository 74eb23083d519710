#pragma once
// The verbs of operations, and the properties that all operations with the same verb share.

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/plan/mesh.h"
#include "kernels/device/stream.h"

#pragma GCC visibility push(default)
namespace aliquot {

enum class Verb : uint8_t {
  kGather,     // make the full parameters of a unit accessible, in a slot or as a view
  kForward,    // model code, while a scope is open
  kRecompute,  // repeat the forward of a use right before its backward
  kBackward,
  kRelease,             // end the access to a unit's full parameters, and free their slot
  kReduce,              // reduce-scatter a unit's gradients
  kReplicaAllReduce,    // add the gradient shards of all replicas
  kAllGatherGradients,  // all-gather the reduced gradients (ZeRO stage 0)
  kNorm,                // all-gather the parts of the gradient norm; decide the clip factor and whether to skip
  kMuonMomentum,        // update the momentum of a matrix group, and compute the matrices to orthogonalize
  kGatherMatrices,      // send each matrix of a group to its owner
  kOrthogonalize,       // orthogonalize the matrices that this rank owns
  kScatterMatrices,     // send matrices back to their shards; at ZeRO stage 0, to all ranks
  kUpdate,
  kAllGatherParameters,    // all-gather updated parameters (ZeRO stages 1 and 2)
  kCopyIn,                 // copy offloaded data of a unit into the slots that begin with this operation
  kCopyOut,                // copy the slots that end with this operation back to the offload store
  kGatherQuantizedShards,  // quantize the own shard, and receive the quantized shards of the same place on other nodes
};

/// What Operation::operand is an index of.
enum class Operand : uint8_t { kNone, kUse, kUnit, kMatrixGroup };

/// The code that an operation runs. kNone: it only waits, and begins and ends buffers.
enum class Actor : uint8_t { kNone, kModel, kEngine };

struct VerbInfo {
  Verb verb;
  std::string_view name;  // in schedules, messages and ALIQUOT_FAULT
  Operand operand;
  GroupId group;  // the ranks that take part; is_collective() tells whether they synchronize
  Lane lane;      // the default; StepWriter::lane_of() has the exceptions
  Actor actor;
  /// The operation ends on no rank of its group before all ranks have finished reading the memory of peers.
  bool ends_with_barrier = false;
};

inline constexpr std::array kVerbTable = {
    VerbInfo{Verb::kGather, "gather", Operand::kUnit, GroupId::kShard, Lane::kGather, Actor::kEngine},
    VerbInfo{Verb::kForward, "forward", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kRecompute, "recompute", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kBackward, "backward", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kRelease, "release", Operand::kUnit, GroupId::kRank, Lane::kCompute, Actor::kNone},
    VerbInfo{Verb::kReduce, "reduce", Operand::kUnit, GroupId::kShard, Lane::kReduce, Actor::kEngine},
    VerbInfo{Verb::kReplicaAllReduce, "exchange", Operand::kUnit, GroupId::kReplica, Lane::kExchange, Actor::kEngine,
             true},
    VerbInfo{Verb::kAllGatherGradients, "spread", Operand::kUnit, GroupId::kShard, Lane::kReduce, Actor::kEngine},
    VerbInfo{Verb::kNorm, "norm", Operand::kNone, GroupId::kShard, Lane::kReduce, Actor::kEngine},
    VerbInfo{Verb::kMuonMomentum, "blend", Operand::kMatrixGroup, GroupId::kRank, Lane::kCompute, Actor::kEngine},
    VerbInfo{Verb::kGatherMatrices, "collect", Operand::kMatrixGroup, GroupId::kShard, Lane::kGather, Actor::kEngine},
    VerbInfo{Verb::kOrthogonalize, "orthogonalize", Operand::kMatrixGroup, GroupId::kRank, Lane::kCompute,
             Actor::kEngine},
    VerbInfo{Verb::kScatterMatrices, "scatter", Operand::kMatrixGroup, GroupId::kShard, Lane::kGather, Actor::kEngine},
    VerbInfo{Verb::kUpdate, "update", Operand::kUnit, GroupId::kRank, Lane::kCompute, Actor::kEngine},
    VerbInfo{Verb::kAllGatherParameters, "publish", Operand::kUnit, GroupId::kShard, Lane::kGather, Actor::kEngine},
    VerbInfo{Verb::kCopyIn, "copy-in", Operand::kUnit, GroupId::kRank, Lane::kIo, Actor::kEngine},
    VerbInfo{Verb::kCopyOut, "copy-out", Operand::kUnit, GroupId::kRank, Lane::kIo, Actor::kEngine},
    VerbInfo{Verb::kGatherQuantizedShards, "refresh", Operand::kUnit, GroupId::kShard, Lane::kGather, Actor::kEngine},
};

constexpr const VerbInfo& info(Verb verb) { return kVerbTable[static_cast<std::size_t>(verb)]; }
static_assert(
    [] {
      for (std::size_t i = 0; i < kVerbTable.size(); ++i) {
        if (kVerbTable[i].verb != static_cast<Verb>(i)) return false;
      }
      return true;
    }(),
    "a row of kVerbTable is not at the index of its verb");

constexpr std::string_view name(Verb verb) { return info(verb).name; }
/// Whether the operand of such operations is a matrix group.
constexpr bool belongs_to_matrix_group(Verb verb) { return info(verb).operand == Operand::kMatrixGroup; }
constexpr bool is_model_code(Verb verb) { return info(verb).actor == Actor::kModel; }

}  // namespace aliquot
#pragma GCC visibility pop
