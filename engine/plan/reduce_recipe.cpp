#include "engine/plan/reduce_recipe.h"

#include <algorithm>

#include "engine/plan/accesses.h"
#include "engine/plan/sizes.h"

namespace aliquot {
namespace {

/// Appends the accesses of a quantized reduce: first those within the node, then those between nodes.
void append_quantized(const ReduceRecipe& recipe, int32_t flat, std::vector<Access>& to) {
  if (recipe.peers_read) {
    to.push_back({.role = Role::kNodePartialSums, .flat = flat, .writes = true});
    to.push_back({.role = Role::kNodePartialSums, .flat = flat});
  }
  to.push_back({.role = Role::kFp32Sums, .flat = flat, .writes = true});
  to.push_back({.role = Role::kErrorFeedbackResidual, .flat = flat});
  to.push_back({.role = Role::kErrorFeedbackResidual, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedSums, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedSums, .flat = flat, .readers = GroupId::kShard, .after_all_arrived = true});
  to.push_back({.role = Role::kQuantizedReceived, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedReceived, .flat = flat});
  to.push_back({.role = Role::kFp32Sums, .flat = flat});
}

}  // namespace

DType partial_dtype(const Plan& plan) {
  const bool wide = plan.schedule.sums_in_levels || plan.policy.replica_count > 1;
  return wide ? DType::kFloat32 : plan.policy.precision.gradients;
}

int repetition_count(const Plan& plan, GroupId group) {
  if (plan.policy.replay_every == 0) return 0;
  const bool is_shard = group == GroupId::kShard;
  if (is_shard ? encodes_gradients(plan) : encodes_exchanges(plan)) return 0;
  return std::min(2, (is_shard ? plan.topology.rank_count() : plan.policy.replica_count) - 1);
}

RepeatedSums repeated_sums(const Plan& plan, GroupId group, int32_t flat) {
  RepeatedSums sums{.count = plan.flats[flat].trainable ? repetition_count(plan, group) : 0};
  sums.block_count = plan.flats[flat].layout.shard_count() / kBlockElements;
  if (group == GroupId::kReplica) {
    sums.sums = Role::kRepeatedReplicaSums;
    sums.digests = Role::kReplicaSumDigests;
    sums.block_count /= plan.policy.replica_count;
  }
  return sums;
}

bool exchanges_each_micro_batch(const Plan& plan) {
  return plan.schedule.sums_in_levels && plan.policy.replica_count > 1;
}

ReduceRecipes::ReduceRecipes(const Plan& plan)
    : plan_(plan),
      common_{.gradient_dtype = plan.policy.precision.gradients,
              .sent_dtype = plan.policy.precision.sent(),
              .encoded = encodes_gradients(plan),
              .peers_read = !encodes_gradients(plan) || has_several_ranks_per_node(plan),
              .staged = needed_bytes(plan, Role::kReduceStaging, -1) > 0,
              .repeated = repetition_count(plan, GroupId::kShard) > 0} {}

Accumulation ReduceRecipes::over_micro_batches(bool first, bool last, int32_t micro_batch) const {
  Accumulation into{.in_levels = plan_.schedule.sums_in_levels, .partial_dtype = partial_dtype(plan_), .squares = last};
  into.additions = into.in_levels ? closed_levels(micro_batch) : first ? 0 : 1;
  const bool waits = into.in_levels && !last;
  into.sum = plan_.schedule.reduces_in_place ? Role::kGradients
             : waits                         ? tree_level_role(into.additions)
                                             : Role::kReducedGradients;
  into.sum_dtype = waits ? DType::kFloat32 : plan_.policy.precision.gradients;
  return into;
}

ReduceRecipe ReduceRecipes::at(bool first, bool last, int32_t micro_batch) const {
  ReduceRecipe recipe = common_;
  recipe.into = over_micro_batches(first, last, micro_batch);
  if (plan_.policy.replica_count == 1) return recipe;
  if (exchanges_each_micro_batch(plan_)) recipe.into.additions = 0;
  recipe.into.in_levels = false;
  recipe.into.sum = Role::kReplicaPartialSums;
  recipe.into.sum_dtype = DType::kFloat32;
  recipe.into.squares = false;
  return recipe;
}

Accumulation ReduceRecipes::over_replicas(bool last, int32_t micro_batch) const {
  // If the all-reduce runs once per step, the reduces have already added the micro-batches, so there are no earlier
  // sums.
  return over_micro_batches(true, last, micro_batch);
}

std::vector<ReduceRecipe> reduce_recipes(const Plan& plan) {
  const auto& operations = plan.schedule.operations;
  const ReduceRecipes recipes(plan);
  std::vector<OperationId> first(plan.model.units.size(), -1), last(plan.model.units.size(), -1);
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (operations[id].verb != Verb::kReduce) continue;
    last[operations[id].operand] = id;
    if (first[operations[id].operand] < 0) first[operations[id].operand] = id;
  }
  std::vector<ReduceRecipe> all(operations.size());
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (operation.verb == Verb::kReduce)
      all[id] = recipes.at(id == first[operation.operand], id == last[operation.operand], operation.micro_batch);
    if (operation.verb == Verb::kReplicaAllReduce)
      all[id].into = recipes.over_replicas(id > last[operation.operand], operation.micro_batch);
  }
  return all;
}

void append_accesses(const ReduceRecipe& recipe, int32_t flat, std::vector<Access>& to) {
  if (recipe.casts()) {
    to.push_back({.role = Role::kGradients, .flat = flat});
    to.push_back({.role = Role::kSentGradients, .flat = flat, .writes = true});
  }
  to.push_back({.role = recipe.sent(),
                .flat = flat,
                .readers = shard_group_if(recipe.peers_read),
                .after_all_arrived = recipe.peers_read});
  if (recipe.encoded) append_quantized(recipe, flat, to);
  if (recipe.staged) to.push_back({.role = Role::kReduceStaging, .flat = -1, .writes = true});
  if (recipe.repeated) append_accesses(RepeatedSums{}, flat, to);
  to.push_back({.role = recipe.into.result(), .flat = flat, .writes = true});
  if (recipe.into.result_has_squares()) to.push_back({.role = Role::kBlockSquares, .flat = flat, .writes = true});
  append_accesses(recipe.into, flat, to);
}

void append_accesses(const RepeatedSums& repeated, int32_t flat, std::vector<Access>& to) {
  to.push_back({.role = repeated.sums, .flat = flat, .writes = true});
  to.push_back({.role = repeated.sums, .flat = flat});
  to.push_back({.role = repeated.digests, .flat = flat});
  to.push_back({.role = repeated.digests, .flat = flat, .writes = true});
}

void append_accesses(const Accumulation& into, int32_t flat, std::vector<Access>& to) {
  if (into.additions == 0) return;
  for (int i = 0; i < into.additions; ++i) to.push_back({.role = into.waiting(i), .flat = flat});
  to.push_back({.role = into.sum, .flat = flat, .writes = true});
  if (into.squares) to.push_back({.role = Role::kBlockSquares, .flat = flat, .writes = true});
}

}  // namespace aliquot
