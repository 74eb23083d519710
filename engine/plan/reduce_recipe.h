#pragma once
// What a reduce does with gradients: what it reads, sends, writes and rounds. The writer plans its buffers by this, the executor
// runs it, and prices are taken from it.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

struct Access;

/// The type of a micro-batch's sum until it has been added to others, and of those that wait for it.
DType partial_dtype(const Plan& plan);

/// Of one reduce, for each trainable flat of its unit. The sum over ranks goes to `sum` if nothing waits for it. Else it goes to
/// kMicroBatchSum, what waits is added to it one after the other, and the last addition writes `sum`.
struct ReduceRecipe {
  DType gradient_dtype = DType::kFloat32;  // of kGradients
  DType sent_dtype =
      DType::kFloat32;     // of what ranks read of one another; where it is another, kSentGradients is cast first
  bool encoded = false;    // the sums of a node's ranks go to other nodes in 8 bits
  bool peers_read = true;  // of what is sent: all ranks, or those of the node
  bool staged = false;     // between nodes of hosts
  bool in_levels = false;  // what waits is at levels of a tree, else in `sum`
  int additions = 0;       // how many sums wait
  DType partial_dtype = DType::kFloat32;
  Role sum = Role::kReducedGradients;
  DType sum_dtype = DType::kFloat32;
  bool squares = false;  // the sum is complete: its squares are for the norm

  bool casts() const { return sent_dtype != gradient_dtype; }
  Role sent() const { return casts() ? Role::kSentGradients : Role::kGradients; }
  /// The i-th that waits.
  Role waiting(int i) const { return in_levels ? tree_level_role(i) : sum; }
};

/// The recipes of a plan's reduces. `plan` must outlive it.
class ReduceRecipes {
 public:
  explicit ReduceRecipes(const Plan& plan);
  /// Of a reduce in that micro-batch that is the first, or the last, of its unit in a step.
  ReduceRecipe at(bool first, bool last, int32_t micro_batch) const;

 private:
  const Plan& plan_;
  ReduceRecipe common_;
};

/// By operation of the schedule; nothing is meant where it is no reduce.
std::vector<ReduceRecipe> reduce_recipes(const Plan& plan);

/// Appends what the reduce of a flat touches, in order.
void append_accesses(const ReduceRecipe& recipe, int32_t flat, std::vector<Access>& to);

/// Whether the lives of such buffers end with a reduce, or an exchange, whatever becomes of the sum.
constexpr bool ends_with_reduce(Role role) {
  return role == Role::kGradients || role == Role::kSentGradients || role == Role::kNodePartialSums ||
         role == Role::kFp32Sums || role == Role::kQuantizedSums || role == Role::kQuantizedReceived ||
         role == Role::kMicroBatchSum;
}

}  // namespace aliquot
