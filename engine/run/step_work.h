#pragma once
// What the operations of a schedule do that are not the model's own.

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "engine/plan/reduce_recipe.h"
#include "engine/run/global_norm.h"
#include "engine/run/matrix_work.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/quantized_collectives.h"
#include "engine/run/red_zones.h"
#include "engine/run/replica_groups.h"
#include "engine/run/updater.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Enqueues an operation's work on the stream it is given; buffers and their order are the executor's business. Allocates
/// nothing after the first step. Used from the rank's own thread; everything given must outlive it.
class StepWork {
 public:
  struct Parts {
    const Plan& plan;
    const ReplicaGroups& groups;
    StepMemory& memory;
    const OffloadStores& offload_stores;
    Updater& updater;
    const Optimizer& optimizer;
  };
  explicit StepWork(const Parts& parts);

  void gather_quantized_shards(Stream& lane, const Operation& operation, Label label);
  void gather(Stream& lane, const Operation& operation, Label label);
  void reduce(Stream& lane, OperationId id, Label label);
  void replica_all_reduce(Stream& lane, const Operation& operation, Label label);
  void all_gather_gradients(Stream& lane, const Operation& operation, Label label);
  void all_gather_parameters(Stream& lane, const Operation& operation, Label label);
  void update(Stream& lane, UnitId unit, const UpdateSteps& steps);
  /// A part of a group's way. Nothing where the step is skipped, which every rank decides alike.
  void matrices(Stream& lane, const Operation& operation, const UpdateSteps& steps, Label label);
  /// To or from the homes of what is offloaded.
  void copy(Stream& io, OperationId id);
  /// Blocks until all ranks' parts are here.
  NormResult norm(Stream& lane, bool abandons, Label label);

  /// Before the model's code: gradients that it writes first start from zeros where kernels add. `all`: nobody will write
  /// them, so they are zeros. Red zones are filled.
  void open_use(Stream& compute, OperationId use, bool all);
  /// After it: red zones are compared (RedZones::compare), and padding of gradients is zeros, whatever was written there, so
  /// that nothing that reads whole shards sees it.
  void close_use(Stream& compute, OperationId use);
  void begin_step();

 private:
  void note_first_writes();
  void reduce_flat(Stream& lane, const ReduceRecipe& recipe, int32_t flat, Label label);
  SymmetricRange sent(Stream& lane, const ReduceRecipe& recipe, int32_t flat);
  std::span<const std::byte* const> addition_sources(const void* left, const void* right);
  void clear_gradients(Stream& compute, OperationId backward, bool all);
  void clear_padding(Stream& compute, int32_t flat);

  const Plan& plan_;
  Communicator& ranks_;  // of the replica
  const ReplicaGroups& groups_;
  const Kernels& kernels_;
  StepMemory& memory_;
  const OffloadStores& offload_stores_;
  Updater& updater_;
  std::optional<GlobalNorm> norm_;                        // not in an evaluation
  std::optional<QuantizedCollectives> quantized_;         // where weights or gradients are quantised
  std::optional<MatrixWork> matrices_;                    // nor this; where the optimizer takes matrices
  std::vector<std::vector<BufferId>> copies_;             // by operation: the slots that it fills or empties
  std::vector<ReduceRecipe> recipes_;                     // by operation
  std::optional<RedZones> red_zones_;                     // where the policy checks
  std::vector<std::vector<Gap>> padding_;                 // by flat
  std::vector<std::vector<int32_t>> first_writes_;        // by operation: flats whose gradients a backward writes first
  std::vector<std::vector<int32_t>> accumulating_flats_;  // by operation: flats whose gradients it adds to
  std::deque<std::array<const std::byte*, 2>> addition_sources_;  // the sources of this step's additions, in order
  std::size_t next_addition_ = 0;
};

}  // namespace aliquot
