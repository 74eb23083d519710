#include "engine/plan/sizes.h"

#include <algorithm>
#include <bit>

#include "engine/plan/reduce_recipe.h"
#include "engine/plan/use_collectives.h"
#include "kernels/elementwise/kernels.h"
#include "optim/norm_runs.h"
#include "optim/update/update.h"
#include "sharding/comm/reduce_staging.h"

namespace aliquot {
namespace {

/// The longest shard whose sum over the ranks of `topology` needs staging memory. Gradients of type `from` are added to
/// sums of type `to`.
int64_t longest_staged_shard(const Plan& plan, const Topology& topology, DType from, DType to) {
  int64_t longest = 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    const bool staged = sum_needs_staging(topology, plan.adds_in_tree_order(f), from, to);
    if (plan.trains(f) && staged) longest = std::max(longest, plan.flats[f].layout.shard_count());
  }
  return longest;
}

/// The size of the staging memory of a group. With replays, it suffices for both values of ReduceScatter::alone.
int64_t staging_bytes(const Plan& plan, const Topology& topology, int64_t part_count) {
  const int64_t bytes = reduce_staging(topology, part_count).size_bytes();
  if (plan.policy.replay_every == 0) return bytes;
  return std::max(bytes, reduce_staging(topology, part_count, true).size_bytes());
}

/// All reduces of the lane use the same staging memory one after another, so the longest shard determines the size.
int64_t reduce_staging_bytes(const Plan& plan) {
  if (encodes_gradients(plan)) return 0;
  const Precision& precision = plan.policy.precision;
  // With replicas, the sums over a shard group are fp32, because the replicas add them again.
  const DType sums = plan.policy.replica_count > 1 ? DType::kFloat32 : precision.gradients;
  return staging_bytes(plan, plan.topology, longest_staged_shard(plan, plan.topology, precision.sent(), sums));
}

/// Replicate groups may span different numbers of nodes. All ranks plan with the maximum.
int64_t exchange_staging_bytes(const Plan& plan) {
  const int replicas = plan.policy.replica_count;
  if (replicas == 1 || encodes_exchanges(plan)) return 0;
  int64_t most = 0;
  for (int shard = 0; shard < plan.topology.rank_count(); ++shard) {
    const Topology group = topology_of_replicate_group(plan.data_topology, replicas, shard);
    const int64_t longest =
        longest_staged_shard(plan, group, DType::kFloat32, plan.policy.precision.gradients) / replicas;
    most = std::max(most, staging_bytes(plan, group, longest));
  }
  return most;
}

int64_t activation_bytes(const Plan& plan, Role role, int32_t use) {
  const int64_t declared = declared_bytes(plan.model, role, use);
  if (!plan.policy.check || declared == 0) return declared;
  return (declared + kRedZoneBytes + kPlacePageBytes - 1) / kPlacePageBytes * kPlacePageBytes;
}

/// Returns the size of a table of pieces of one shard or of all shards. A shard has at most one piece of each tensor.
/// All shards have at most one more piece per shard boundary.
int64_t segment_table_bytes(const Plan& plan, int32_t flat, bool of_all_shards) {
  const auto pieces =
      static_cast<int64_t>(plan.flats[flat].layout.tensors().size()) + (of_all_shards ? plan.topology.rank_count() : 0);
  return pieces * static_cast<int64_t>(sizeof(Segment));
}

/// Returns the size of the tables of pieces, the same on every rank: that of the update, and that of the elements which
/// kCompareState compares. 0 on hosts, whose work needs no tables in device memory.
int64_t segment_bytes(const Plan& plan, int32_t flat) {
  if (!plan.topology.has_gpus()) return 0;
  const int64_t compared =
      plan.compares_outside_updates(flat) ? segment_table_bytes(plan, flat, plan.schedule.zero_stage != 3) : 0;
  return updated_segment_bytes(plan, flat) + compared;
}

/// Returns the size of a buffer of quantized communication. The buffer has one part per node. If replicas exchange
/// quantized sums, it has one part of the shard per replica. The residual then has one more part, for the sum that this
/// rank quantizes.
int64_t encoded_sum_bytes(const Plan& plan, Role role, int64_t shard_count) {
  const bool exchanges = encodes_exchanges(plan);
  const int64_t parts = exchanges ? plan.policy.replica_count : plan.topology.node_count();
  const int64_t count = exchanges ? shard_count / parts : shard_count;
  if (role == Role::kFp32Sums) return parts * count * static_cast<int64_t>(sizeof(float));
  return encoded_bytes(count) * (parts + (exchanges && role == Role::kErrorFeedbackResidual ? 1 : 0));
}

int64_t element_count(const Plan& plan, ElementCount count, int32_t flat) {
  const int64_t shard = plan.flats[flat].layout.shard_count(), all = shard * plan.topology.rank_count();
  switch (count) {
    case ElementCount::kShard: return shard;
    case ElementCount::kAll: return all;
    case ElementCount::kStored: return plan.schedule.zero_stage == 3 ? shard : all;
    case ElementCount::kUpdated: return plan.updated_count(flat);
    case ElementCount::kOther: break;
  }
  return 0;
}

int64_t type_bytes(const Plan& plan, ElementType type) {
  const Precision& precision = plan.policy.precision;
  switch (type) {
    case ElementType::kCompute: return element_bytes(precision.compute);
    case ElementType::kMaster: return precision.master_bytes();
    case ElementType::kGradients: return element_bytes(precision.gradients);
    case ElementType::kSent: return element_bytes(precision.sent());
    case ElementType::kPartial: return element_bytes(partial_dtype(plan));
    case ElementType::kFloat32: return element_bytes(DType::kFloat32);
    case ElementType::kOther: break;
  }
  return 0;
}

/// One digest for each block of the stored parameters, of the masters and of the optimizer states.
int64_t state_digest_bytes(const Plan& plan, int32_t flat) {
  if (!plan.policy.check_state) return 0;
  int64_t elements = element_count(plan, ElementCount::kStored, flat);
  const bool has_states = plan.state_bytes_per_block(flat) > 0;
  if (plan.flats[flat].trainable)
    elements += plan.updated_count(flat) * ((plan.policy.precision.has_master() ? 1 : 0) + (has_states ? 1 : 0));
  return elements / kBlockElements * static_cast<int64_t>(sizeof(uint64_t));
}

/// One digest for each block of full gradients, and one for the same block in a replay.
int64_t gradient_digest_bytes(const Plan& plan, int32_t flat) {
  if (plan.policy.replay_every == 0 || !plan.flats[flat].trainable) return 0;
  return 2 * plan.flats[flat].layout.flat_count() / kBlockElements * static_cast<int64_t>(sizeof(uint64_t));
}

int64_t sum_digest_bytes(const Plan& plan, GroupId group, int32_t flat) {
  const RepeatedSums sums = repeated_sums(plan, group, flat);
  return sums.count == 0 ? 0 : (1 + sums.count) * sums.block_count * static_cast<int64_t>(sizeof(uint64_t));
}

/// Returns the sum of of_flat(blocks of the shard, number of tensors) over the flat buffers that this stage trains.
template <typename OfFlat>
int64_t sum_over_trained(const Plan& plan, const OfFlat& of_flat) {
  int64_t sum = 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    const auto& layout = plan.flats[f].layout;
    if (plan.trains(f)) sum += of_flat(layout.shard_count() / kBlockElements, std::ssize(layout.tensors()));
  }
  return sum;
}

/// Each rank sums over subtrees in the tree of the norm. A complete tensor is one subtree. A tensor that is cut at an
/// end of the shard has at most one subtree per level at that end. No subtree is smaller than a block.
int64_t norm_node_count(const Plan& plan) {
  return sum_over_trained(plan, [](int64_t blocks, int64_t tensors) {
    const auto levels = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(blocks)));
    return std::min(blocks, tensors + 2 * levels);
  });
}

/// An upper bound of the number of partial sums of split_runs(). Only runs of more than kMaxRunLeaves blocks are split.
/// Each partial sum adds kMaxRunLeaves blocks. Only the last partial sum of a tensor may add fewer.
int64_t norm_partial_count(const Plan& plan) {
  return sum_over_trained(plan, [](int64_t blocks, int64_t tensors) {
    const int64_t most_long_runs = blocks / kMaxRunLeaves;
    return most_long_runs + std::min(most_long_runs, tensors);
  });
}

/// The size of kNormRuns or kNormPartialSums, the same on every rank. 0 on hosts, whose work needs neither.
int64_t norm_run_bytes(const Plan& plan, Role role) {
  if (!plan.topology.has_gpus()) return 0;
  const int64_t partial_count = norm_partial_count(plan);
  if (role == Role::kNormPartialSums) return partial_count * static_cast<int64_t>(sizeof(double));
  return (norm_node_count(plan) + partial_count) * static_cast<int64_t>(sizeof(LeafRun));
}

/// Returns the sizes of roles with ElementCount::kOther.
int64_t other_bytes(const Plan& plan, Role role, int32_t flat) {
  const int ranks = plan.topology.rank_count(), nodes = plan.topology.node_count();
  const int64_t shard = plan.flats[flat].layout.shard_count();
  switch (role) {
    case Role::kOffloadedOptimizer:
    case Role::kOptimizer: return plan.updated_count(flat) / kBlockElements * plan.state_bytes_per_block(flat);
    case Role::kSegments: return segment_bytes(plan, flat);
    case Role::kQuantizedParameters: return encoded_bytes(shard) * ranks;
    case Role::kNodePartialSums:
      return nodes == ranks ? 0 : shard * ranks * element_bytes(plan.policy.precision.sent());
    case Role::kQuantizedShards: return encoded_bytes(shard) * nodes;
    case Role::kFp32Sums:
    case Role::kQuantizedSums:
    case Role::kQuantizedReceived:
    case Role::kErrorFeedbackResidual: return encoded_sum_bytes(plan, role, shard);
    case Role::kStateDigests: return state_digest_bytes(plan, flat);
    case Role::kGradientDigests: return gradient_digest_bytes(plan, flat);
    case Role::kSumDigests: return sum_digest_bytes(plan, GroupId::kShard, flat);
    case Role::kRepeatedReplicaSums: return shard / plan.policy.replica_count * element_bytes(partial_dtype(plan));
    case Role::kReplicaSumDigests: return sum_digest_bytes(plan, GroupId::kReplica, flat);
    case Role::kBlockSquares: return shard / kBlockElements * static_cast<int64_t>(sizeof(double));
    default: return 0;
  }
}

}  // namespace

int64_t declared_bytes(const ModelSpec& model, Role role, int32_t use) {
  if (role == Role::kActivationGradients) return model.activations.backward_bytes;
  const UseActivations& of = model.activations.uses[use];
  switch (role) {
    case Role::kOutputActivations: return of.output_bytes;
    case Role::kSavedActivations: return of.kept_bytes;
    case Role::kWeightInputs: return of.weight_inputs_bytes;
    default: return of.scratch_bytes;
  }
}

int64_t needed_bytes(const Plan& plan, Role role, int32_t flat) {
  if (role == Role::kNormParts) return norm_part_bytes(plan) * plan.topology.rank_count();
  if (role == Role::kNormRuns || role == Role::kNormPartialSums) return norm_run_bytes(plan, role);
  if (role == Role::kReduceStaging) return reduce_staging_bytes(plan);
  if (role == Role::kExchangeStaging) return exchange_staging_bytes(plan);
  if (role == Role::kCollectiveStaging) return collective_staging_bytes(plan);
  if (role == Role::kTensorSumStaging) return tensor_sum_staging_bytes(plan);
  if (is_activation(role)) return activation_bytes(plan, role, flat);
  if (role == Role::kOwnedMatrices) return plan.matrix_groups[flat].held_bytes;
  if (role == Role::kOrthogonalizeScratch) return plan.matrix_groups[flat].scratch_bytes;
  const RoleInfo& what = info(role);
  if (what.count == ElementCount::kOther) return other_bytes(plan, role, flat);
  return element_count(plan, what.count, flat) * type_bytes(plan, what.type);
}

int64_t updated_segment_bytes(const Plan& plan, int32_t flat) {
  if (!plan.topology.has_gpus() || !plan.flats[flat].trainable) return 0;
  return segment_table_bytes(plan, flat, plan.schedule.zero_stage == 0);
}

int64_t norm_part_bytes(const Plan& plan) { return (1 + norm_node_count(plan)) * static_cast<int64_t>(sizeof(double)); }

}  // namespace aliquot
