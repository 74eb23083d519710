#pragma once
// The work of all operations except model code.

#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "engine/plan/reduce_recipe.h"
#include "engine/run/exact_norm.h"
#include "engine/run/global_norm.h"
#include "engine/run/matrix_work.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"
#include "engine/run/quantized_collectives.h"
#include "engine/run/red_zones.h"
#include "engine/run/replay_check.h"
#include "engine/run/sum_check.h"
#include "engine/run/updater.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

class FaultInjector;

/// Enqueues the work of operations on a stream. The executor handles waits and buffer lifetimes. Allocates nothing
/// after the first step. Used from the rank's own thread. Everything passed must outlive it.
class StepWork {
 public:
  struct Parts {
    const Plan& plan;
    const MeshGroups& groups;
    const Arena& arena;
    StepMemory& memory;
    const OffloadStores& offload_stores;
    const HostView& view;
    Updater& updater;
    StateDigests& digests;
    const Optimizer& optimizer;
  };
  explicit StepWork(const Parts& parts);

  void gather_quantized_shards(Stream& lane, const Operation& operation, Label label);
  void gather(Stream& lane, const Operation& operation, Label label);
  /// Enqueues any send or receive. When it has run, both stages have finished the transfer.
  void transfer(Stream& lane, OperationId id, Label label);
  void reduce(Stream& lane, OperationId id, Label label);
  void replica_all_reduce(Stream& lane, OperationId id, Label label);
  void all_gather_gradients(Stream& lane, const Operation& operation, Label label);
  void all_gather_parameters(Stream& lane, const Operation& operation, Label label);
  void use_collective(Stream& lane, const Operation& operation, Label label);
  void sum_over_tensor(Stream& lane, const Operation& operation, Label label);
  void update(Stream& lane, UnitId unit, const UpdateSteps& steps);
  void compare_state(Stream& lane, const Operation& operation, Label label);
  /// Enqueues the digests of the full gradients of the unit. A replay has its own digests.
  void digest_gradients(Stream& lane, UnitId unit);
  /// Enqueues the sum of what a send of micro-batch 0 transfers. Call before transfer().
  void sum_sent(Stream& lane, OperationId id);
  /// The sums of the sends of micro-batch 0. Call while all streams are idle.
  std::vector<SentSum> sums_of_sends();
  /// Enqueues any operation of a matrix group. Does nothing if the step is skipped.
  void matrices(Stream& lane, const Operation& operation, const UpdateSteps& steps, Label label);
  /// Enqueues copies between slots and offload stores.
  void copy(Stream& io, OperationId id);
  /// Whether kernels of this GPU have found a difference of the state. Call throw_if_found_difference() when all lanes
  /// are idle. It throws the difference.
  bool has_found_difference() const { return digests_.has_found(); }
  void throw_if_found_difference() const { digests_.throw_if_found(); }
  /// Computes the gradient norm. Blocks until the parts of all ranks have arrived.
  NormResult norm(Stream& lane, bool abandons, Label label);

  /// Clears the memory that the use is the first to write and that a pipeline stage sends. Bytes that the model leaves
  /// undefined then do not differ between ranks that compute the same micro-batch. Call before open_use().
  void clear_sent(Stream& compute, OperationId use);
  /// Called before model code. Fills red zones. Clears the gradients that this use is the first to write. Gradients
  /// that the model assigns (GradientMode::kAssign) are cleared only if `all` is true. The caller then runs no model
  /// code.
  void open_use(Stream& compute, OperationId use, bool all);
  /// Called after model code. Checks red zones (RedZones::compare). Clears the padding of gradients, because operations
  /// on complete shards also read padding.
  void close_use(Stream& compute, OperationId use);
  void begin_step();
  /// Sets whether this rank also computes sums of other ranks in the next step (RepeatedSums). Call before each step.
  void set_repeats_sums(bool on);
  /// Returns the time that lanes spent on repetitions since the last call. 0 on GPUs, because host functions that
  /// measure it would delay their streams.
  double drain_repetition_seconds() { return static_cast<double>(repetition_nanoseconds_.exchange(0)) * 1e-9; }
  /// Null disables fault injection.
  void set_faults(FaultInjector* faults) { faults_ = faults; }

 private:
  /// The sum of a flat buffer in an operation.
  struct SumOf {
    OperationId operation;
    int32_t flat;
  };

  void note_first_writes();
  void note_transfers();
  void make_sent_sums();
  uint64_t* sent_sums() { return pinned_sent_sums_.data() ? pinned_sent_sums_.as<uint64_t>() : host_sent_sums_.data(); }
  void replica_all_reduce_flat(Stream& lane, OperationId id, int32_t flat, Label label);
  void add_earlier_sums(Stream& lane, const Accumulation& into, int32_t flat);
  void reduce_flat(Stream& lane, OperationId id, int32_t flat, Label label);
  void add_over_ranks(Stream& lane, GroupId group, ReduceScatter what, SumOf of, Label label);
  double* squares(int32_t flat, AccessMode how) const;
  SymmetricRange sent(Stream& lane, const ReduceRecipe& recipe, int32_t flat);
  std::span<const std::byte* const> addition_sources(const void* left, const void* right);
  void clear_gradients(Stream& compute, OperationId backward, bool all);
  void clear_padding(Stream& compute, int32_t flat);

  const Plan& plan_;
  Communicator& ranks_;  // the shard group
  const MeshGroups& groups_;
  const Kernels& kernels_;
  const Arena& arena_;
  StepMemory& memory_;
  const OffloadStores& offload_stores_;
  const HostView& view_;
  Updater& updater_;
  StateDigests& digests_;
  std::optional<GlobalNorm> norm_;                 // empty in an evaluation
  std::optional<ExactNorm> exact_norm_;            // empty unless Plan::has_exact_norm()
  std::optional<QuantizedCollectives> quantized_;  // empty unless weights or gradients are quantized
  std::optional<MatrixWork> matrices_;             // empty without Muon and in an evaluation
  std::vector<std::vector<BufferId>> copies_;      // result of copied_slots(): the slots of each copy operation
  std::vector<ReduceRecipe> recipes_;              // result of reduce_recipes()
  std::vector<Transfer> transfers_;                // one per operation; set for sends and receives
  std::vector<uint64_t> host_sent_sums_;           // same index; see sum_sent(). Empty on GPUs
  Buffer pinned_sent_sums_;                        // on GPUs, the same in pinned host memory
  std::optional<RedZones> red_zones_;              // empty outside the checking mode
  std::vector<std::vector<Gap>> padding_;          // for each flat buffer, the result of slice_gaps()
  /// For each backward: the flat buffers that it is the first to write, and the flat buffers to which it adds.
  std::vector<std::vector<int32_t>> first_writes_;
  std::vector<std::vector<int32_t>> accumulating_flats_;
  std::deque<std::array<const std::byte*, 2>> addition_sources_;  // the operands of this step's additions, in order
  std::size_t next_addition_ = 0;
  bool repeats_sums_ = false;
  std::array<double, kLaneCount> repetition_began_{};  // for each lane; used by its work
  std::atomic<int64_t> repetition_nanoseconds_ = 0;    // of all lanes
  FaultInjector* faults_ = nullptr;
};

}  // namespace aliquot
