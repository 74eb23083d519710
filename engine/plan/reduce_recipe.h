#pragma once
// The steps of a reduce: the buffers that it reads, sends and writes, and their types. The schedule writer, the
// executor and the cost model all use this description.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

struct Access;

/// The type of kMicroBatchSum and of the partial sums to which it is added.
DType partial_dtype(const Plan& plan);

/// How the sum of one micro-batch is combined with the sums of earlier ones. Without earlier sums, the collective
/// writes the sum of the micro-batch to `sum`. Otherwise it writes that sum to kMicroBatchSum. The earlier sums are
/// then added one after another, and the last addition writes `sum`.
struct Accumulation {
  bool in_levels = false;  // true: the i-th earlier sum is at tree level i; false: the only earlier sum is in `sum`
  int additions = 0;       // number of earlier sums to add
  DType partial_dtype = DType::kFloat32;
  Role sum = Role::kReducedGradients;
  DType sum_dtype = DType::kFloat32;
  bool squares = false;  // the sum is complete, so its squares are computed for the norm

  /// The buffer and type in which the collective writes the sum of the micro-batch.
  Role result() const { return additions > 0 ? Role::kMicroBatchSum : sum; }
  DType result_dtype() const { return additions > 0 ? partial_dtype : sum_dtype; }
  /// Whether the collective computes the squares. If there are additions, the last addition computes them instead.
  bool result_has_squares() const { return squares && additions == 0; }
  /// The buffer of the i-th earlier sum.
  Role waiting(int i) const { return in_levels ? tree_level_role(i) : sum; }
};

/// How one reduce treats each trainable flat buffer of its unit. For an all-reduce over replicas, only `into` is used.
struct ReduceRecipe {
  DType gradient_dtype = DType::kFloat32;  // type of kGradients
  /// Type in which ranks send gradients. If it differs from `gradient_dtype`, gradients are cast to kSentGradients.
  DType sent_dtype = DType::kFloat32;
  bool encoded = false;    // 8-bit sums are sent to other nodes
  bool peers_read = true;  // other ranks read the gradients of this rank
  bool staged = false;     // uses kReduceStaging, between host nodes or over NCCL
  bool repeated = false;   // see RepeatedSums
  Accumulation into = {};

  bool casts() const { return sent_dtype != gradient_dtype; }
  Role sent() const { return casts() ? Role::kSentGradients : Role::kGradients; }
};

/// Whether each micro-batch is summed over replicas before it is added to earlier micro-batches. Otherwise replicas sum
/// once per step.
bool exchanges_each_micro_batch(const Plan& plan);

/// The recipes of a plan's reduces. `plan` must outlive it.
class ReduceRecipes {
 public:
  explicit ReduceRecipes(const Plan& plan);
  /// The recipe of a reduce in `micro_batch`. `first`, `last`: whether it is the unit's first, or last, reduce of the
  /// step.
  ReduceRecipe at(bool first, bool last, int32_t micro_batch) const;
  /// The accumulation of an all-reduce over replicas in `micro_batch`. `last`: whether it follows the unit's last
  /// reduce of the step.
  Accumulation over_replicas(bool last, int32_t micro_batch) const;

 private:
  /// The accumulation over micro-batches without replicas.
  Accumulation over_micro_batches(bool first, bool last, int32_t micro_batch) const;

  const Plan& plan_;
  ReduceRecipe common_;
};

/// With Policy::replay_every: in steps with a replay, other ranks repeat the sums of a reduce (GroupId::kShard) or
/// replica all-reduce (GroupId::kReplica). Rank r of the group repeats the sums of ranks r + 1 and r + 2, so a majority
/// of three decides. In a group of two ranks, it repeats only those of the other rank. Quantized sums are not repeated.
/// The digests are those of the rank's own sums, then those of its repetitions.
struct RepeatedSums {
  Role sums = Role::kRepeatedSums, digests = Role::kSumDigests;
  int count = 0;            // repetitions by each rank: 0, 1 or 2
  int64_t block_count = 0;  // blocks of the sums of one rank
  /// The index of the first digest of the own sums (0), or of a repetition (1 or 2).
  int64_t first_digest(int repetition) const { return repetition * block_count; }
};
RepeatedSums repeated_sums(const Plan& plan, GroupId group, int32_t flat);
/// RepeatedSums::count for flat buffers that train.
int repetition_count(const Plan& plan, GroupId group);

/// The recipes of reduces and of all-reduces over replicas, indexed by operation. Other entries are unspecified.
std::vector<ReduceRecipe> reduce_recipes(const Plan& plan);

/// Appends the accesses of the reduce of a flat buffer, in order.
void append_accesses(const ReduceRecipe& recipe, int32_t flat, std::vector<Access>& to);
/// Appends the accesses of the additions. They include the squares if the additions compute them.
void append_accesses(const Accumulation& into, int32_t flat, std::vector<Access>& to);

/// Appends the accesses of repeated sums and their digests.
void append_accesses(const RepeatedSums& repeated, int32_t flat, std::vector<Access>& to);

/// Whether buffers with this role are needed only until the end of a reduce, or of an all-reduce over replicas.
constexpr bool ends_with_reduce(Role role) {
  return role == Role::kGradients || role == Role::kSentGradients || role == Role::kNodePartialSums ||
         role == Role::kFp32Sums || role == Role::kQuantizedSums || role == Role::kQuantizedReceived ||
         role == Role::kMicroBatchSum || role == Role::kRepeatedSums || role == Role::kRepeatedReplicaSums;
}

}  // namespace aliquot
