#pragma once
// The buffers that each operation reads and writes, on this rank and on peers.

#include <vector>

#include "engine/plan/reduce_recipe.h"

namespace aliquot {

/// One access of an operation to the buffer of `role` that is in use for `flat` (PlannedBuffer::flat). An operation
/// makes the same accesses on every rank. A rank writes only its own buffers. `readers`: the ranks that read this
/// rank's buffer, in the same operation.
struct Access {
  Role role;
  int32_t flat;
  bool writes = false;
  GroupId readers = GroupId::kRank;
  /// The operation's micro-batch for roles with RoleInfo::per_micro_batch, otherwise -1.
  int32_t micro_batch = -1;
  /// Whether the access begins only after all ranks of the group have started the collective
  /// (HappensBefore::at_all_arrived()).
  bool after_all_arrived = false;
};

/// Returns for each backward operation the units whose gradients it adds to those of an earlier backward. The gradients
/// of its other units have no earlier value. Entries of other operations are empty.
std::vector<std::vector<UnitId>> accumulating_units(const Plan& plan);

/// The contract between the schedule and the executor: an operation must access these buffers and no others. The
/// validator checks schedules by this contract, and AccessCheck checks the executor.
class Accesses {
 public:
  explicit Accesses(const Plan& plan);

  /// The accesses of an operation, in order. Valid until the next call. The communicator itself orders the accesses of
  /// one collective to the same bytes on different ranks.
  const std::vector<Access>& of(OperationId operation);

  bool trains(UnitId unit) const;

 private:
  void list(OperationId operation);
  void use(OperationId operation);
  void activations(const Operation& operation);
  void collective(OperationId operation);
  void sum_over_tensor(int32_t flat);
  void transfer(const Operation& operation);
  void copy(OperationId operation);
  void gather_quantized_shards(int32_t flat);
  void gather(int32_t flat);
  void gather_quantized(int32_t flat);
  void replica_all_reduce(const Accumulation& into, int32_t flat);
  void all_gather_gradients(int32_t flat);
  void norm();
  void group(const Operation& operation);
  void move_matrices(int32_t group, bool in_place, Verb verb);
  void gradient_to_update(int32_t flat);
  void add_read_and_write(Role role, int32_t flat);
  void update(int32_t flat);
  void all_gather_parameters(int32_t flat);
  void compare_state(int32_t flat);
  void digest_gradients(int32_t flat);
  void add(Access access) { accesses_.push_back(access); }

  const Plan& plan_;
  bool several_nodes_;           // whether there are several nodes; ranks of a node then forward parts to one another
  bool reduces_in_place_;        // see Schedule::reduces_in_place
  bool has_exchange_staging_;    // whether replica all-reduces need staging
  bool has_collective_staging_;  // whether collectives of uses need staging
  bool has_tensor_sum_staging_;  // whether sums over the tensor group need staging
  /// For each operation kUseCollective, the operation of model code that runs it.
  std::vector<OperationId> code_of_collective_;
  std::vector<ReduceRecipe> recipes_;                    // result of reduce_recipes()
  std::vector<std::vector<UnitId>> accumulating_units_;  // result of accumulating_units()
  std::vector<std::vector<BufferId>> copies_;            // result of copied_slots()
  std::vector<Access> accesses_;
};

}  // namespace aliquot
