#pragma once
// The verbs of a schedule, and the facts that hold for every operation of one.

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/device/stream.h"

#pragma GCC visibility push(default)
namespace aliquot {

enum class Verb : uint8_t {
  kGather,     // make a unit whole, in a slot or as a view
  kForward,    // the model's own code, between the opening and the closing of a scope
  kRecompute,  // forward of a use once more, right before its backward, which finds what forward left
  kBackward,
  kRelease,             // let a unit go
  kReduce,              // reduce-scatter a unit's gradients
  kReplicaAllReduce,    // add up the shards of all replicas
  kAllGatherGradients,  // all-gather the reduced gradients (stage 0)
  kNorm,                // exchange the parts of the norm, decide clip factor and skip
  kMuonMomentum,        // of a group of matrices: momentum, and what is to be made orthogonal
  kGatherMatrices,      // each of them to its owner
  kOrthogonalize,
  kScatterMatrices,  // back to the shards that they came from; where every rank has them, to all
  kUpdate,
  kAllGatherParameters,    // all-gather updated parameters (stages 1 and 2)
  kCopyIn,                 // bring offloaded buffers of a unit into their slots: those whose lives begin with it
  kCopyOut,                // take them back to where they lie: those whose lives end with it
  kGatherQuantizedShards,  // encode the own shard, and get other nodes' encoded shards that this rank keeps for its node
};

/// What Operation::operand is an index of.
enum class Operand : uint8_t { kNone, kUse, kUnit, kMatrixGroup };

/// The ranks that an operation runs over.
enum class GroupId : uint8_t {
  kRank,     // this rank alone
  kShard,    // the ranks of one replica; is_collective() says whether they meet
  kReplica,  // the ranks that hold the same shard, one of each replica
};

/// Whose code an operation runs, beyond its waits and the buffers that begin and end with it.
enum class Actor : uint8_t { kNone, kModel, kEngine };

struct VerbInfo {
  Verb verb;
  std::string_view name;  // in schedules, messages and ALIQUOT_FAULT
  Operand operand;
  GroupId group;
  Lane lane;  // the usual one: StepWriter::lane_of() has the exceptions
  Actor actor;
};

inline constexpr std::array kVerbTable = {
    VerbInfo{Verb::kGather, "gather", Operand::kUnit, GroupId::kShard, Lane::kGather, Actor::kEngine},
    VerbInfo{Verb::kForward, "forward", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kRecompute, "recompute", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kBackward, "backward", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kRelease, "release", Operand::kUnit, GroupId::kRank, Lane::kCompute, Actor::kNone},
    VerbInfo{Verb::kReduce, "reduce", Operand::kUnit, GroupId::kShard, Lane::kReduce, Actor::kEngine},
    VerbInfo{Verb::kReplicaAllReduce, "exchange", Operand::kUnit, GroupId::kReplica, Lane::kExchange, Actor::kEngine},
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
    "a row of kVerbTable is not at the place of its verb");

constexpr std::string_view name(Verb verb) { return info(verb).name; }
/// Whether the place of such operations is a group of matrices.
constexpr bool belongs_to_matrix_group(Verb verb) { return info(verb).operand == Operand::kMatrixGroup; }
constexpr bool is_model_code(Verb verb) { return info(verb).actor == Actor::kModel; }

}  // namespace aliquot
#pragma GCC visibility pop
