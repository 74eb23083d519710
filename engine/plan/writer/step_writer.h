#pragma once
// The schedule writer. Private to this folder. Its functions are defined in writer.cpp (forward and backward passes),
// activations.cpp (buffers of activations), gradients.cpp (reductions and updates) and matrices.cpp (Muon).

#include <utility>
#include <vector>

#include "engine/plan/reduce_recipe.h"
#include "engine/plan/writer/writer.h"

namespace aliquot {

class StepWriter {
 public:
  StepWriter(const Plan& plan, const StagePasses& passes);
  ScheduleDraft write();

 private:
  static constexpr OperationId kNone = -1;

  /// The first and the last operation of a buffer.
  struct Lifetime {
    OperationId first = kNone, last = kNone;
  };

  /// The activations of one use and micro-batch that exist between operations.
  struct KeptActivations {
    Lifetime output = {};
    OperationId saved_from = kNone;
    OperationId sent = kNone;      // operation that sends the output to the next pipeline stage
    OperationId received = kNone;  // operation that receives the output from the previous pipeline stage
    /// Operation that receives the gradient of the output from the next pipeline stage.
    OperationId gradient_received = kNone;
    /// Operation that runs the first part of a split backward. kNone after the second part has run.
    OperationId weight_inputs_from = kNone;
  };

  /// A visit is one forward, recompute or backward of a use, or one part of a split backward. A recompute and its
  /// backward have the same `position` in the passes.
  struct Visit {
    Verb verb;
    int32_t use;
    int32_t micro_batch;
    int32_t position;
    const VirtualStage* run;
    int32_t pass = 0;                           // number of earlier passes of this virtual stage
    bool ends_pass = false;                     // the last visit of a pass
    std::vector<PipelineAction> receives = {};  // the passes whose input is received right before this visit
  };

  struct UnitState {
    /// The first use of the unit on the pipeline stage. The backward of this use is the last one of the unit in a pass.
    int32_t first_use = kNone;
    std::vector<int32_t> needs;  // indices in `visits_` of the visits that read the parameters of the unit
    std::size_t next_need = 0;   // position in `needs` of the first visit that is not yet written
    bool gathered = false;
    int32_t gathered_for_pass = 0;  // Visit::pass for which the unit was gathered last
    bool gathered_before = false;   // whether the unit was gathered before in this step
    OperationId refresh = kNone, last_gather = kNone, last_release = kNone;
    std::vector<Lifetime> gradients;  // backward operations since the last reduce, see gradients()
    OperationId first_reduce = kNone, last_reduce = kNone, exchange = kNone, spread = kNone, compare = kNone,
                update = kNone, publish = kNone;
    /// With Policy::reproducible, for each tree level: the operation that wrote the sum stored at this level.
    std::vector<OperationId> levels;
  };

  /// The operations of a matrix group.
  struct GroupState {
    OperationId blend = kNone, collect = kNone, orthogonalize = kNone, scatter = kNone;
  };

  /// The first backward of a micro-batch that writes a unit's persistent gradients, and the last earlier reduce that
  /// reads these gradients.
  struct PersistentGradientWrite {
    OperationId backward;
    UnitId unit;
    OperationId reduce_before;
  };

  bool is_zero_stage_3() const { return schedule_.zero_stage == 3; }
  bool has_persistent_gradients() const { return schedule_.zero_stage <= 1; }
  bool has_persistent_gradients(UnitId unit) const { return has_persistent_gradients() && !interleaved_[unit]; }
  bool has_replicas() const { return policy_.replica_count > 1; }
  bool all_gathers_parameters() const { return schedule_.zero_stage == 1 || schedule_.zero_stage == 2; }
  bool trains(UnitId unit) const;

  Lane lane_of(Verb verb) const;
  OperationId add(Verb verb, int32_t operand, int32_t micro_batch, std::vector<Wait> after = {});
  void wait(OperationId operation, Wait wait);
  OperationId add_collectives(const Visit& visit, OperationId compute);
  Category category_of(Role role) const;
  Space space_of(Role role) const;
  /// Adds a buffer with its planned size. `ends`: see DraftBuffer.
  void add_buffer(Role role, int32_t flat, Lifetime life, std::vector<Wait> ends);

  void list_visits(const StagePasses& passes);
  void list_pass(const PipelineAction& pass);
  void add_visit(Verb verb, int32_t use, const PipelineAction& pass);
  void receive(const PipelineAction& pass);
  void wait_for_transfers(const Visit& visit, OperationId compute);
  void send(const Visit& visit, OperationId compute);
  OperationId transfer(Verb verb, const VirtualStage& run, int32_t micro_batch, std::vector<Wait> after = {});
  void write_visit(int32_t v);
  void gather_for(int32_t v);
  void gather_quantized_shards(UnitId unit, int32_t micro_batch);
  bool should_release(UnitId unit, int32_t v) const;
  void release(UnitId unit, int32_t v);

  void track_activations(int32_t v, const Lifetime& code);
  void add_finished_outputs(const Visit& visit);
  bool is_read_later(int32_t use, const Visit& visit);
  void add_activation_buffer(Role role, int32_t use, const Visit& visit, Lifetime life, OperationId sent = kNone);
  /// Returns the kept activations of `use` in a micro-batch.
  KeptActivations& kept(int32_t micro_batch, int32_t use);
  /// Returns the lifetime of the activation gradients in a micro-batch.
  Lifetime& activation_gradients(int32_t micro_batch);

  /// Returns the first and the last of the backward operations whose gradients the unit's next reduce sums. With
  /// interleaved gradients (`interleaved_`), each micro-batch in flight has its own operations and its own reduce.
  Lifetime& gradients(UnitId unit, int32_t micro_batch);
  void digest_gradients(int32_t v);
  void reduce_complete_units(int32_t v);
  void reduce(UnitId unit, int32_t micro_batch, bool last_micro_batch);
  bool sums_over_tensor(UnitId unit) const;
  void add_reduce_buffers(UnitId unit, OperationId reduce, const ReduceRecipe& recipe);
  OperationId replica_all_reduce(UnitId unit, int32_t micro_batch, const Accumulation& into);
  void merge_levels(UnitId unit, OperationId sum, const Accumulation& into, bool last_micro_batch);
  void finish_step();
  void compare_state(UnitId unit, int32_t micro_batch);
  void update_all(OperationId norm);
  void update_group(int32_t group, OperationId norm);
  void update_after(UnitId unit, OperationId norm);
  void gather_matrices(int32_t group, OperationId norm);
  void orthogonalize_and_scatter(int32_t group);
  void add_matrix_buffers(int32_t group);
  void update(UnitId unit, int32_t micro_batch, std::vector<Wait> after);
  void add_reduced_buffers(UnitId unit, OperationId norm);
  void add_staging(Verb verb, Role role);
  void add_waits_on_previous_step();
  void add_waits_of_refreshes();
  void add_spare_gradient_slot();
  void add_spare_send_slots();
  void add_persistent_buffers();
  void add_persistent_buffer(Role role, int32_t flat);

  const Plan& plan_;
  const ModelSpec& model_;
  const Policy& policy_;
  const Schedule& schedule_;
  const PipelineStage& stage_;
  const std::vector<FlatSpec>& flats_;
  const std::vector<std::vector<int32_t>>& flats_of_;
  bool one_node_;
  int rank_count_;
  ReduceRecipes recipes_;
  std::vector<bool> recomputed_;   // result of recomputed_uses()
  std::vector<bool> split_;        // result of split_uses()
  std::vector<bool> interleaved_;  // result of units_with_interleaved_gradients()
  std::vector<Visit> visits_;
  std::vector<UnitState> units_;
  std::vector<int32_t> group_of_unit_;
  std::vector<GroupState> group_states_;
  std::vector<std::pair<OperationId, UnitId>> first_gathers_;
  std::vector<PersistentGradientWrite> persistent_gradient_writes_;
  std::vector<KeptActivations> kept_activations_;  // one per micro-batch in flight and use
  std::vector<Lifetime> activation_gradients_;     // one per micro-batch in flight
  std::vector<OperationId> pass_ends_;             // the last model code of each pass
  OperationId last_exchange_ = kNone;
  ScheduleDraft draft_;
};

}  // namespace aliquot
