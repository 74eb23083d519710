#pragma once
// Walks a schedule on the streams of a device; knows no policy.

#include <array>
#include <memory>
#include <vector>

#include "engine/global_norm.h"
#include "engine/step_memory.h"
#include "engine/updater.h"
#include "sharding/world.h"

namespace aliquot {

/// What the end of a step decides, from the norm: the update of all units.
class StepDecision {
 public:
  virtual ~StepDecision() = default;
  /// Called once a step, by the rank's own thread, the same on every rank.
  virtual UpdateStep decide(const NormResult& norm) = 0;
};

/// Issues the operations of a plan in order, step after step. Forward and backward are the model's: the executor stops
/// there, and its caller opens and closes them. Allocates nothing after the first step. Used from the rank's own thread;
/// everything given must outlive it. After an exception only destruction is allowed.
class Executor {
 public:
  struct Parts {
    const Plan& plan;
    World& world;
    StepMemory& memory;
    Updater& updater;
    StepDecision& decision;
  };
  explicit Executor(const Parts& parts);
  ~Executor();

  /// The operation that comes next; the schedule's end wraps around.
  OperationId next() const { return cursor_; }
  const Operation& operation(OperationId id) const { return plan_.schedule.operations[id]; }
  bool at_model_code() const;
  /// The first operation of a step that is neither the model's nor before one that is.
  bool at_end_of_passes() const { return cursor_ == first_after_passes_; }
  bool at_start_of_step() const { return cursor_ == 0; }

  /// Issues everything up to the next forward or backward, or up to the end of the passes.
  void run_to_model_code();
  /// At a forward or backward: waits for what it needs, and clears the gradients that it writes first.
  void open();
  /// It is done: what follows is issued, up to the next of the model's code.
  void close();
  /// At the end of the passes: norm, decision, updates. Leaves the executor at the start of the next step.
  void finish_step();

  /// Of the step being executed, from 1.
  int64_t step() const { return step_; }
  Stream& stream(Lane lane) { return *streams_[static_cast<std::size_t>(lane)]; }

 private:
  void note_observed_operations();
  void note_first_writes();
  void issue(OperationId id);
  void begin(OperationId id);
  void run(OperationId id);
  void end(OperationId id);
  void gather(const Operation& operation);
  void reduce(OperationId id, const Operation& operation);
  void spread(const Operation& operation);
  void publish(const Operation& operation);
  void clear_gradients(int32_t flat);
  Label label(const Operation& operation) const;
  uint64_t progress(OperationId id, int64_t step) const;

  const Plan& plan_;
  World& world_;
  StepMemory& memory_;
  Updater& updater_;
  StepDecision& decision_;
  GlobalNorm norm_;
  UpdateStep update_step_;
  OperationId cursor_ = 0;
  OperationId first_after_passes_ = 0;
  int64_t step_ = 1;
  uint64_t progress_base_;  // above all that an engine before this one published

  // What the schedule says, turned round once: by operation.
  std::vector<bool> observed_here_, observed_by_all_;
  std::vector<std::vector<BufferId>> begins_, ends_;
  std::vector<std::vector<int32_t>> first_writes_;       // flats whose gradients a backward writes first
  std::vector<OperationId> first_reduce_, last_reduce_;  // by unit

  std::array<std::unique_ptr<Stream>, kLaneCount> streams_;  // destroyed before what their work uses
  std::vector<std::unique_ptr<Event>> events_;               // by operation, where observed here
};

}  // namespace aliquot
