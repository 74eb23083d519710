// The minimum sizes of buffers, from layouts, topology and precision. Does not use needed_bytes(), from which the
// schedule writer gets its sizes, so that an error in needed_bytes() is found.
#include <algorithm>
#include <set>

#include "engine/proof/validate_parts.h"
#include "optim/muon/orthogonalize.h"
#include "optim/update/update.h"
#include "sharding/comm/reduce_staging.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/// Returns the size of one byte per element and one scale per block, rounded up to 64 bytes.
int64_t encoded_part_bytes(int64_t count) {
  constexpr int64_t kScaleBytes = 4, kAligned = 64;
  return rounded_up(count + count / kBlockElements * kScaleBytes, kAligned);
}

class BufferSizes {
 public:
  BufferSizes(const Plan& plan, const PlannedBuffer& buffer, int node_count)
      : plan_(plan),
        precision_(plan.policy.precision),
        role_(buffer.role),
        owner_(buffer.flat),
        ranks_(plan.topology.rank_count()),
        nodes_(node_count),
        replicas_(plan.policy.replica_count) {}

  int64_t bytes() const {
    switch (info(role_).owner) {
      case Owner::kUse: return activation_bytes();
      case Owner::kMatrixGroup: return matrix_bytes(plan_.matrix_groups[owner_]);
      case Owner::kNone: return common_bytes();
      case Owner::kFlat: return of_flat(plan_.flats[owner_]);
    }
    return 0;
  }

 private:
  static constexpr int64_t kDouble = 8, kLeafRun = 24;

  /// In the checking mode, a red zone follows the declared bytes and extends to the end of a page.
  int64_t activation_bytes() const {
    const ActivationSpec& spec = plan_.model.activations;
    int64_t declared = spec.backward_bytes;
    if (role_ == Role::kOutputActivations) declared = spec.uses[owner_].output_bytes;
    if (role_ == Role::kSavedActivations) declared = spec.uses[owner_].kept_bytes;
    if (role_ == Role::kScratch) declared = spec.uses[owner_].scratch_bytes;
    if (role_ == Role::kWeightInputs) declared = spec.uses[owner_].weight_inputs_bytes;
    return declared == 0 || !plan_.policy.check ? declared : rounded_up(declared + kRedZoneBytes, kPlacePageBytes);
  }

  /// Matrices begin at multiples of 256 bytes. The size of their buffer is such a multiple, too.
  int64_t matrix_bytes(const MatrixGroup& group) const {
    constexpr int64_t kMatrixAlignment = 256;
    int64_t bytes = 0;
    for (const OwnedMatrix& matrix : group.matrices) {
      const int64_t end = matrix.offset_bytes + rounded_up(matrix.size_bytes(), kMatrixAlignment);
      bytes = std::max(bytes, role_ == Role::kOwnedMatrices ? end : orthogonalize_scratch_bytes(matrix.shape));
    }
    return bytes;
  }

  int64_t common_bytes() const {
    if (role_ == Role::kActivationGradients) return activation_bytes();
    if (role_ == Role::kNormParts) return ranks_ * norm_part();
    if (role_ == Role::kNormRuns) return (norm_part() / kDouble - 1 + norm_partial_sums()) * kLeafRun;
    if (role_ == Role::kNormPartialSums) return norm_partial_sums() * kDouble;
    if (role_ == Role::kCollectiveStaging) return collective_staging();
    if (role_ == Role::kTensorSumStaging) return tensor_sum_staging();
    std::set<StagingPlaces> places;
    const auto insert = [&](const Topology& topology) {
      places.insert(reduce_staging_places(topology));
      if (plan_.policy.replay_every != 0) places.insert(reduce_staging_places(topology, true));
    };
    if (role_ == Role::kReduceStaging) insert(plan_.topology);
    for (int shard = 0; shard < ranks_ && role_ == Role::kExchangeStaging; ++shard)
      insert(topology_of_replicate_group(plan_.data_topology, replicas_, shard));
    int64_t bytes = 0;
    for (const FlatSpec& flat : plan_.flats) {
      if (!plan_.unit_is_here[flat.unit]) continue;
      const int64_t count = flat.layout.shard_count() / (role_ == Role::kExchangeStaging ? replicas_ : 1);
      for (const StagingPlaces& of : places) {
        if (flat.trainable && (of.max_nccl_bytes == 0 || converts_or_adds_in_tree(flat)))
          bytes = std::max(bytes, reduce_staging(of, count).size_bytes());
      }
    }
    return bytes;
  }

  /// Whether NCCL cannot add these gradients by itself. It adds only fp32 to fp32, in an order that it chooses.
  /// Replicas exchange the fp32 sums of shard groups.
  bool converts_or_adds_in_tree(const FlatSpec& flat) const {
    const Policy& policy = plan_.policy;
    const bool exchanges = role_ == Role::kExchangeStaging;
    const DType sent = exchanges ? DType::kFloat32 : policy.precision.sent();
    const DType sum = exchanges || replicas_ == 1 ? policy.precision.gradients : DType::kFloat32;
    const bool copies = policy.tensor > 1 && flat.gradients != TensorGradients::kSlice;
    return policy.reproducible || policy.replay_every != 0 || copies || sent != DType::kFloat32 ||
           sum != DType::kFloat32;
  }

  /// The same for data of this type in a tensor group.
  bool converts_or_adds_in_tree(DType dtype) const {
    return plan_.policy.reproducible || plan_.policy.replay_every != 0 || dtype != DType::kFloat32;
  }

  /// The places of a slot of staging memory, over all tensor groups of the stage.
  std::set<StagingPlaces> tensor_staging_places() const {
    const int tensor = plan_.policy.tensor;
    const Topology stage = topology_of_stage(plan_.world, plan_.stage.count, plan_.stage.index);
    std::set<StagingPlaces> places;
    for (int first = 0; first < stage.rank_count(); first += tensor) {
      std::vector<int> members;
      for (int rank = first; rank < first + tensor; ++rank) members.push_back(rank);
      places.insert(reduce_staging_places(topology_of_group(stage, members)));
    }
    return places;
  }

  /// Staging for the largest sum of a collective of a use of this stage, in the tensor group that needs most.
  int64_t collective_staging() const {
    const int tensor = plan_.policy.tensor;
    int64_t bytes = 0;
    for (const StagingPlaces& places : tensor_staging_places()) {
      for (const VirtualStage& run : plan_.stage.runs) {
        for (int32_t use = run.first_use; use < run.end_use && !plan_.model.activations.uses.empty(); ++use) {
          for (const UseCollective& what : plan_.model.activations.uses[use].collectives) {
            const int64_t part = (what.rows + tensor - 1) / tensor * what.row_elements;
            const bool staged = places.max_nccl_bytes == 0 || converts_or_adds_in_tree(what.dtype);
            if (what.kind != CollectiveKind::kGather && staged)
              bytes = std::max(bytes, reduce_staging(places, part).size_bytes());
          }
        }
      }
    }
    return bytes;
  }

  int64_t tensor_sum_staging() const {
    const int tensor = plan_.policy.tensor;
    int64_t bytes = 0;
    for (const StagingPlaces& places : tensor_staging_places()) {
      if (places.max_nccl_bytes > 0 && !converts_or_adds_in_tree(plan_.policy.precision.gradients)) continue;
      for (const FlatSpec& flat : plan_.flats) {
        const bool adds = flat.trainable && plan_.unit_is_here[flat.unit] && flat.gradients == TensorGradients::kSum;
        if (adds) bytes = std::max(bytes, reduce_staging(places, flat.layout.flat_count() / tensor).size_bytes());
      }
    }
    return bytes;
  }

  /// Returns the size of one flag, and of one sum per subtree of each flat buffer. Each tensor is one subtree. Each end
  /// of the shard adds one subtree for each time that the number of blocks can be halved.
  int64_t norm_part() const {
    int64_t sums = 1;
    for (const FlatSpec& flat : plan_.flats) {
      const int64_t blocks = flat.layout.shard_count() / kBlockElements;
      auto subtrees = static_cast<int64_t>(flat.layout.tensors().size());
      for (int64_t left = blocks; left > 0; left /= 2) subtrees += 2;
      if (flat.trainable && plan_.unit_is_here[flat.unit]) sums += std::min(blocks, subtrees);
    }
    return sums * kDouble;
  }

  /// Returns the number of partial sums of at most 2048 blocks each, in the subtrees with more blocks. A subtree may
  /// end with a partial sum of fewer blocks, but at most one subtree of each tensor does.
  int64_t norm_partial_sums() const {
    constexpr int64_t kPartial = 2048;
    int64_t sums = 0;
    for (const FlatSpec& flat : plan_.flats) {
      if (!flat.trainable || !plan_.unit_is_here[flat.unit]) continue;
      const int64_t complete = flat.layout.shard_count() / (kPartial * kBlockElements);
      sums += std::min(2 * complete, complete + static_cast<int64_t>(flat.layout.tensors().size()));
    }
    return sums;
  }

  int64_t of_flat(const FlatSpec& flat) const {
    constexpr int64_t kFloat = 4;
    const int64_t shard = flat.layout.shard_count(), whole = shard * ranks_;
    const int64_t updated = plan_.schedule.zero_stage == 0 ? whole : shard;
    const int64_t compute = element_bytes(precision_.compute), gradient = element_bytes(precision_.gradients);
    if (tree_level_of(role_) >= 0) return shard * kFloat;
    switch (role_) {
      case Role::kParameters:
      case Role::kOffloadedParameters:
      case Role::kStagedShard: return compute * (plan_.schedule.zero_stage == 3 ? shard : whole);
      case Role::kMaster:
      case Role::kOffloadedMaster: return updated * master_element_bytes();
      case Role::kOptimizer:
      case Role::kOffloadedOptimizer: return updated / kBlockElements * state_bytes_of_block(flat);
      case Role::kSegments: return segment_bytes(flat);
      case Role::kGathered: return whole * compute;
      case Role::kGradients: return whole * gradient;
      case Role::kReducedGradients: return shard * gradient;
      case Role::kSentGradients: return whole * element_bytes(precision_.reduce.value_or(precision_.gradients));
      case Role::kReplicaPartialSums: return shard * kFloat;
      case Role::kMicroBatchSum: return shard * (plan_.schedule.sums_in_levels || replicas_ > 1 ? kFloat : gradient);
      case Role::kBlockSquares: return shard / kBlockElements * kDouble;
      case Role::kMuonDirections: return updated * kFloat;
      case Role::kStateDigests: return state_digests(flat, plan_.schedule.zero_stage == 3 ? shard : whole, updated);
      case Role::kGradientDigests:  // 64 bits for each block of this rank, and as many for those of a replay
        return flat.trainable && plan_.policy.replay_every != 0 ? 2 * 8 * (whole / kBlockElements) : 0;
      case Role::kSumDigests:
      case Role::kReplicaSumDigests: return sum_digests(flat);
      case Role::kRepeatedSums: return shard * (plan_.schedule.sums_in_levels || replicas_ > 1 ? kFloat : gradient);
      case Role::kRepeatedReplicaSums: return shard / replicas_ * kFloat;
      default: return of_encoded(shard);
    }
  }

  /// Bytes of a buffer of quantized communication. Without replicas, the buffer has a part of `shard` elements for each
  /// node. With replicas, it has a part of shard / replicas elements for each replica.
  int64_t of_encoded(int64_t shard) const {
    const bool exchanges = replicas_ > 1;
    const int64_t parts = exchanges ? replicas_ : nodes_, count = exchanges ? shard / replicas_ : shard;
    switch (role_) {
      case Role::kQuantizedShards: return nodes_ * encoded_part_bytes(shard);
      case Role::kQuantizedParameters: return ranks_ * encoded_part_bytes(shard);
      case Role::kNodePartialSums:  // each rank of this node sends one part for each node
        return ranks_ == nodes_ ? 0 : ranks_ * shard * element_bytes(precision_.reduce.value_or(precision_.gradients));
      case Role::kFp32Sums: return parts * count * static_cast<int64_t>(sizeof(float));
      case Role::kQuantizedSums:
      case Role::kQuantizedReceived: return parts * encoded_part_bytes(count);
      case Role::kErrorFeedbackResidual: return (exchanges ? parts + 1 : parts) * encoded_part_bytes(count);
      default: return 0;
    }
  }

  /// The number of bytes per element that the master stores in addition to the working copy.
  int64_t master_element_bytes() const {
    if (precision_.compute == DType::kFloat32) return 0;
    return precision_.compute == DType::kBFloat16 && precision_.master == MasterForm::kSplit ? 2 : 4;
  }

  int64_t state_bytes_of_block(const FlatSpec& flat) const {
    return flat.matrices ? plan_.policy.matrix_updates->state_bytes_per_block : plan_.policy.state_bytes_per_block;
  }

  /// One 64-bit digest for each block of parameters. If the flat buffer trains, also for each block of masters and of
  /// optimizer states, if they exist.
  int64_t state_digests(const FlatSpec& flat, int64_t stored, int64_t updated) const {
    int64_t blocks = stored / kBlockElements;
    if (flat.trainable && master_element_bytes() > 0) blocks += updated / kBlockElements;
    if (flat.trainable && state_bytes_of_block(flat) > 0) blocks += updated / kBlockElements;
    return blocks * 8;
  }

  /// 64 bits for each block of this rank's own sums, and of those that it repeats for one or two other ranks.
  int64_t sum_digests(const FlatSpec& flat) const {
    if (plan_.policy.replay_every == 0 || !flat.trainable) return 0;
    const bool quantized = plan_.policy.quantize_gradients;
    const int64_t blocks = flat.layout.shard_count() / kBlockElements;
    if (role_ == Role::kReplicaSumDigests)
      return quantized && !plan_.data_topology.one_node() ? 0 : 8 * std::min(3, replicas_) * (blocks / replicas_);
    return quantized && nodes_ > 1 && replicas_ == 1 ? 0 : 8 * std::min(3, ranks_) * blocks;
  }

  /// A shard has at most one piece of each tensor. All shards may have one more piece at each boundary between shards.
  /// The update has a table of the pieces that it changes. With digests of the state, a second table has the pieces
  /// that are compared but not updated: those of all stored parameters if they are frozen, else those of other shards.
  int64_t segment_bytes(const FlatSpec& flat) const {
    const auto tensors = static_cast<int64_t>(flat.layout.tensors().size());
    const int stage = plan_.schedule.zero_stage;
    int64_t pieces = flat.trainable ? tensors + (stage == 0 ? ranks_ : 0) : 0;
    const bool stores_other_shards = ranks_ > 1 && stage > 0 && stage < 3;
    const bool is_compared = plan_.policy.check_state && flat.layout.flat_count() > 0;
    if (is_compared && (!flat.trainable || stores_other_shards)) pieces += tensors + (stage < 3 ? ranks_ : 0);
    return pieces * static_cast<int64_t>(sizeof(Segment));
  }

  const Plan& plan_;
  const Precision& precision_;
  Role role_;
  int32_t owner_;
  int ranks_, nodes_, replicas_;
};

}  // namespace

int64_t required_bytes(const Plan& plan, const PlannedBuffer& buffer, int node_count) {
  return BufferSizes(plan, buffer, node_count).bytes();
}

}  // namespace aliquot
