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
  kGather,              // make the full parameters of a unit accessible, in a slot or as a view
  kForward,             // model code, while a scope is open
  kRecompute,           // repeat the forward of a use right before its backward
  kBackward,            // the whole backward of a use
  kBackwardInput,       // the part of a backward that computes the gradients of activations
  kBackwardWeights,     // the part of a backward that computes the gradients of parameters
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
  kGatherQuantizedShards,  // quantize the shard, and receive the shards of the ranks with the same index on other nodes
  kSendActivations,        // send the output of the stage's last use to the next pipeline stage
  kReceiveActivations,     // receive the input of the stage's first use
  kSendGradients,          // send the gradient of the input of the stage's first use to the previous pipeline stage
  kReceiveGradients,       // receive the gradient of the output of the stage's last use
  kSumOverTensor,          // add the full gradients of a unit over the tensor group (TensorGradients::kSum)
  kCompareState,           // compare the digests of those parameters of a unit that this rank does not update
  kDigestGradients,        // with Policy::replay_every: compute the digests of this rank's gradients of micro-batch 0
  kUseCollective,          // a collective that model code runs, and the model code between it and the next one
};

/// What Operation::operand is an index of. A send or receive names the use whose output, or gradient of the output, is
/// transferred. That use is on the earlier one of the two stages.
enum class Operand : uint8_t { kNone, kUse, kUnit, kMatrixGroup };

/// The code that an operation runs. kNone: it only waits, and begins and ends buffers.
enum class Actor : uint8_t { kNone, kModel, kEngine };

struct VerbInfo {
  Verb verb;
  std::string_view name;  // in schedules, messages and ALIQUOT_FAULT
  Operand operand;
  GroupId group;  // the ranks that take part; is_collective() says whether they synchronize
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
    VerbInfo{Verb::kBackwardInput, "backward-input", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
    VerbInfo{Verb::kBackwardWeights, "backward-weights", Operand::kUse, GroupId::kRank, Lane::kCompute, Actor::kModel},
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
    VerbInfo{Verb::kSendActivations, "send", Operand::kUse, GroupId::kNextStage, Lane::kForward0, Actor::kEngine, true},
    VerbInfo{Verb::kReceiveActivations, "receive", Operand::kUse, GroupId::kPreviousStage, Lane::kForward0,
             Actor::kEngine, true},
    VerbInfo{Verb::kSendGradients, "send-gradient", Operand::kUse, GroupId::kPreviousStage, Lane::kBackward0,
             Actor::kEngine, true},
    VerbInfo{Verb::kReceiveGradients, "receive-gradient", Operand::kUse, GroupId::kNextStage, Lane::kBackward0,
             Actor::kEngine, true},
    VerbInfo{Verb::kSumOverTensor, "tensor-sum", Operand::kUnit, GroupId::kTensor, Lane::kReduce, Actor::kEngine, true},
    VerbInfo{Verb::kCompareState, "compare-state", Operand::kUnit, GroupId::kRank, Lane::kCompute, Actor::kEngine},
    VerbInfo{Verb::kDigestGradients, "digest", Operand::kUnit, GroupId::kRank, Lane::kCompute, Actor::kEngine},
    VerbInfo{Verb::kUseCollective, "collective", Operand::kUse, GroupId::kTensor, Lane::kCompute, Actor::kEngine, true},
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
/// Whether operations with this verb have a matrix group as operand.
constexpr bool belongs_to_matrix_group(Verb verb) { return info(verb).operand == Operand::kMatrixGroup; }
/// Whether the operation runs model code, which begins at this operation. Collectives of the use may follow.
constexpr bool is_model_code(Verb verb) { return info(verb).actor == Actor::kModel; }
/// Whether the operation computes gradients of activations. Each use has one such operation per micro-batch.
constexpr bool computes_input_gradients(Verb verb) { return verb == Verb::kBackward || verb == Verb::kBackwardInput; }
/// Whether the operation computes gradients of parameters. Each use has one such operation per micro-batch.
constexpr bool computes_weight_gradients(Verb verb) {
  return verb == Verb::kBackward || verb == Verb::kBackwardWeights;
}
/// Whether the operation is one part of a split backward.
constexpr bool is_part_of_backward(Verb verb) { return verb == Verb::kBackwardInput || verb == Verb::kBackwardWeights; }
constexpr bool is_backward(Verb verb) { return computes_input_gradients(verb) || computes_weight_gradients(verb); }
/// Whether model code with this verb reads the values of parameters.
constexpr bool reads_parameters(Verb verb) { return is_model_code(verb) && verb != Verb::kBackwardWeights; }
constexpr bool is_send(Verb verb) { return verb == Verb::kSendActivations || verb == Verb::kSendGradients; }
constexpr bool is_receive(Verb verb) { return verb == Verb::kReceiveActivations || verb == Verb::kReceiveGradients; }
/// Whether operations with this verb transfer data between two pipeline stages.
constexpr bool is_transfer(Verb verb) { return is_stage_pair(info(verb).group); }
/// Whether transfers with this verb send or receive activations, rather than gradients of activations.
constexpr bool transfers_activations(Verb verb) {
  return verb == Verb::kSendActivations || verb == Verb::kReceiveActivations;
}
/// Returns the verb of the same transfer on the other stage.
constexpr Verb counterpart(Verb verb) {
  switch (verb) {
    case Verb::kSendActivations: return Verb::kReceiveActivations;
    case Verb::kReceiveActivations: return Verb::kSendActivations;
    case Verb::kSendGradients: return Verb::kReceiveGradients;
    default: return Verb::kSendGradients;
  }
}

}  // namespace aliquot
#pragma GCC visibility pop
