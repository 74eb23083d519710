#include "engine/plan/reduce_recipe.h"

#include "engine/plan/accesses.h"
#include "engine/plan/sizes.h"

namespace aliquot {
namespace {

/// The accesses of a quantized reduce: first within the node, then between nodes.
void append_quantized(const ReduceRecipe& recipe, int32_t flat, std::vector<Access>& to) {
  if (recipe.peers_read) {
    to.push_back({.role = Role::kNodePartialSums, .flat = flat, .writes = true});
    to.push_back({.role = Role::kNodePartialSums, .flat = flat});
  }
  to.push_back({.role = Role::kFp32Sums, .flat = flat, .writes = true});
  to.push_back({.role = Role::kErrorFeedbackResidual, .flat = flat});
  to.push_back({.role = Role::kErrorFeedbackResidual, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedSums, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedSums, .flat = flat, .read_by_others = true, .after_all_arrived = true});
  to.push_back({.role = Role::kQuantizedReceived, .flat = flat, .writes = true});
  to.push_back({.role = Role::kQuantizedReceived, .flat = flat});
  to.push_back({.role = Role::kFp32Sums, .flat = flat});
}

}  // namespace

DType partial_dtype(const Plan& plan) {
  const bool wide = plan.schedule.sums_in_levels || plan.policy.replica_count > 1;
  return wide ? DType::kFloat32 : plan.policy.precision.gradients;
}

ReduceRecipes::ReduceRecipes(const Plan& plan)
    : plan_(plan),
      common_{.gradient_dtype = plan.policy.precision.gradients,
              .sent_dtype = plan.policy.precision.sent(),
              .encoded = encodes_gradients(plan),
              .peers_read = !encodes_gradients(plan) || has_several_ranks_per_node(plan),
              .staged = needed_bytes(plan, Role::kReduceStaging, -1) > 0,
              .in_levels = plan.schedule.sums_in_levels,
              .partial_dtype = aliquot::partial_dtype(plan)} {}

ReduceRecipe ReduceRecipes::at(bool first, bool last, int32_t micro_batch) const {
  ReduceRecipe recipe = common_;
  const bool replicated = plan_.policy.replica_count > 1, waits = recipe.in_levels && !last;
  recipe.additions = recipe.in_levels ? closed_levels(micro_batch) : first ? 0 : 1;
  recipe.sum = plan_.schedule.reduces_in_place ? Role::kGradients
               : waits                         ? tree_level_role(recipe.additions)
               : replicated                    ? Role::kReplicaPartialSums
                                               : Role::kReducedGradients;
  recipe.sum_dtype = waits || replicated ? DType::kFloat32 : recipe.gradient_dtype;
  recipe.squares = last && !replicated;
  return recipe;
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
    if (operation.verb != Verb::kReduce) continue;
    all[id] = recipes.at(id == first[operation.operand], id == last[operation.operand], operation.micro_batch);
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
                .read_by_others = recipe.peers_read,
                .after_all_arrived = recipe.peers_read});
  if (recipe.encoded) append_quantized(recipe, flat, to);
  if (recipe.staged) to.push_back({.role = Role::kReduceStaging, .flat = -1, .writes = true});
  if (recipe.additions > 0) to.push_back({.role = Role::kMicroBatchSum, .flat = flat, .writes = true});
  for (int i = 0; i < recipe.additions; ++i) to.push_back({.role = recipe.waiting(i), .flat = flat});
  to.push_back({.role = recipe.sum, .flat = flat, .writes = true});
  if (recipe.squares) to.push_back({.role = Role::kBlockSquares, .flat = flat, .writes = true});
}

}  // namespace aliquot
