#pragma once
// The memory of one rank's run: planned, booked in the ledger, and counted by the system.

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/train/reporting/memory_table.h"
#include "apps/train/reporting/system_memory.h"
#include "apps/train/train_context.h"

namespace aliquot {

/// Compares what a run planned with what it took. Used by the rank's own thread. Context and peak outlive it.
class MemoryAudit {
 public:
  /// The run is in `phase` while the object lives, and afterwards again in the phase before.
  class ScopedPhase {
   public:
    ScopedPhase(MemoryAudit& audit, RunPhase phase) : peak_(audit.system_peak_), before_(peak_.enter(phase)) {}
    ~ScopedPhase() { peak_.enter(before_); }
    ScopedPhase(const ScopedPhase&) = delete;
    ScopedPhase& operator=(const ScopedPhase&) = delete;

   private:
    SystemPeak& peak_;
    RunPhase before_;
  };

  /// `system_peak`: made before the run took memory.
  MemoryAudit(const TrainContext& context, SystemPeak& system_peak) : context_(context), system_peak_(system_peak) {}

  /// From now on the plan includes a snapshot of `bytes` for checkpoints that are written beside training.
  void add_snapshot_to_plan(int64_t bytes) { snapshot_bytes_ = bytes; }
  /// Nothing where checkpoints are not written beside training.
  std::optional<int64_t> snapshot_bytes() const { return snapshot_bytes_; }
  /// This rank's planned memory; the measured fields are 0.
  RankMemory planned() const;
  /// Collective. Throws UnavailableError, on all ranks, where --memory-budget or the machine has too little: the system
  /// would hand out memory that it does not have, and later end a process.
  void require_fit() const;

  void enter(RunPhase phase) { system_peak_.enter(phase); }
  /// Measures what the system counts for this rank and the ledger does not. Collective.
  void measure_outside();
  /// The same after the first step, when all memory has been touched. Collective.
  void measure_outside_once();
  /// The highest figures of all ranks so far. Collective.
  MemoryRecord most() const;
  /// Planned and measured memory by rank. Collective.
  std::vector<RankMemory> by_rank();

 private:
  void measure_outside_on_gpu();

  const TrainContext& context_;
  SystemPeak& system_peak_;
  std::optional<int64_t> snapshot_bytes_;
  int64_t outside_bytes_ = 0, system_bytes_ = 0;
};

}  // namespace aliquot
