#pragma once
// What exists once an engine is materialized.

#include "engine/engine.h"
#include "engine/run/executor.h"
#include "engine/run/fault_injector.h"
#include "engine/run/gradient_watch.h"
#include "engine/run/memory/bindings.h"

namespace aliquot {

struct Engine::Running final : StepDecision {
  Running(Engine& of, const Plan& evaluation_plan, std::vector<std::vector<PointerSlots>> slots);
  ~Running() override;

  UpdateSteps decide(const NormResult& norm) override;
  UpdateSteps decide_ahead() override;

  /// Training and evaluation take turns, those of other engines of the world too: whoever begins waits for all ranks to have
  /// finished the other. Throws UsageError where another engine is in the middle of a step.
  Executor& turn_to(Executor& next);
  /// Throws UsageError, naming what was asked for, unless nothing is under way: no step, no evaluation, no live unit.
  void require_between_steps(std::string_view what) const;
  void require_nothing_live() const;
  /// Nothing that this rank enqueued is under way any more.
  void come_to_rest() const {
    for (const auto& lane : lanes) {
      if (lane) lane->synchronize();
    }
  }
  /// Between steps: what rounding gradients left is of a state that is no more.
  void forget_carried() const;
  bool evaluates() const { return active == &evaluator; }
  ModelAddresses& active_addresses() { return evaluates() ? evaluation_addresses : addresses; }
  /// As a checkpoint reaches moments that lie at `at`; null where that address can be followed.
  const PieceAccess* raw_access(const std::byte* at, DType dtype) const;
  /// Throws what closing a scope could not.
  void throw_failure();
  /// Goes through what is left of the passes without the model's code, as all ranks must.
  void finish_passes();
  /// An evaluation that an exception left has its end.
  void settle_evaluation();

  /// Bytes of a device's memory or of a home, as they are.
  struct RawAccess final : PieceAccess {
    RawAccess(const HostView& of, int64_t bytes) : view(of), bytes_per_value(bytes) {}
    void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
      view.fetch(to, piece.bytes + first * bytes_per_value, count * bytes_per_value);
    }
    void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
      view.store(piece.bytes + first * bytes_per_value, from, count * bytes_per_value);
    }
    const HostView& view;
    int64_t bytes_per_value;
  };

  Engine& engine;
  ReplicaGroups groups;
  Homes homes;
  HostView view;
  RawAccess access_1{view, 1}, access_2{view, 2}, access_4{view, 4};
  Plan evaluation;
  Arena arena;
  StepMemory memory, evaluation_memory;
  ModelAddresses addresses, evaluation_addresses;
  Weights weights;
  Updater updater;
  Bindings bindings;
  std::unique_ptr<FaultInjector> faults;
  GradientWatch watch;
  Executor executor, evaluator;
  std::optional<Recorder> recorder;
  int64_t recorded_from = 0;
  Lanes lanes;  // destroyed before what their work uses
  Executor* active = &executor;
  StepReport report;             // of the step being decided
  int micro_batch = -1;          // begun, of this step
  std::vector<UnitId> live;      // of the scope that is open
  UseMemory use_memory;          // of it, too
  std::vector<bool> recomputed;  // by use
  bool abandoned = false;        // an exception left this step, or this evaluation
  bool lost = false;             // a failure was thrown: its streams are of no use any more
  std::exception_ptr failure;    // of closing a scope

 private:
  void make_lane(Lane lane);
  UpdateSteps update_steps(double factor) const;
};

}  // namespace aliquot
