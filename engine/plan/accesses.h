#pragma once
// Which buffers an operation reads and writes, on its own rank and on its peers.

#include <vector>

#include "engine/plan/reduce_recipe.h"

namespace aliquot {

/// One operation's touch of the buffer of `role` that is in use for `flat` (as PlannedBuffer has it), on every rank alike. Only its owner writes a
/// buffer; `read_by_others`: the operation of every other rank reads it too.
struct Access {
  Role role;
  int32_t flat;
  bool writes = false;
  bool read_by_others = false;
  bool after_all_arrived = false;  // what the own rank does, too, is done when all ranks have come to the collective
};

/// The contract between schedules and those who carry them out: an executor touches this and no more.
class Accesses {
 public:
  explicit Accesses(const Plan& plan);

  /// In the order they are made; valid until the next call. What one operation does to the same bytes on two ranks is
  /// the communicator's own business.
  const std::vector<Access>& of(OperationId operation);

  bool trains(UnitId unit) const;

 private:
  void use(OperationId operation);
  void activations(const Operation& operation);
  void copy(OperationId operation);
  void gather_quantized_shards(int32_t flat);
  void gather(int32_t flat);
  void gather_quantized(int32_t flat);
  void replica_all_reduce(int32_t flat);
  void all_gather_gradients(int32_t flat);
  void norm();
  void group(const Operation& operation);
  void move_matrices(int32_t group, bool in_place, Verb verb);
  void gradient_to_update(int32_t flat);
  void add_read_and_write(Role role, int32_t flat);
  void update(int32_t flat);
  void add(Access access) { accesses_.push_back(access); }

  const Plan& plan_;
  bool several_nodes_;                                   // then a node's ranks read what they received for one another
  bool reduces_in_place_;                                // the sum replaces the own part of the gradients
  bool has_exchange_staging_;                            // between nodes of hosts
  std::vector<ReduceRecipe> recipes_;                    // by operation
  std::vector<std::vector<UnitId>> accumulating_units_;  // by operation: units whose gradient a backward adds to
  std::vector<std::vector<BufferId>> copies_;            // by operation
  std::vector<Access> accesses_;
};

}  // namespace aliquot
