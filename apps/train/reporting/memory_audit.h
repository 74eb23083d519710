#pragma once
// The memory of one rank's run: as planned, as recorded by the ledger, and as counted by the operating system.

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/train/reporting/memory_table.h"
#include "apps/train/reporting/system_memory.h"
#include "apps/train/train_context.h"

namespace aliquot {

/// Compares planned and measured memory. Used by the rank's own thread. Context and peak must outlive it.
class MemoryAudit {
 public:
  /// Sets the phase of the run during the object's lifetime, and restores the previous phase afterwards.
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

  /// `system_peak` must be constructed before the run allocates memory.
  MemoryAudit(const TrainContext& context, SystemPeak& system_peak) : context_(context), system_peak_(system_peak) {}

  /// Adds the snapshots of background saves to the planned memory. `bytes` has the size of a snapshot on each pipeline
  /// stage.
  void add_snapshots_to_plan(std::vector<int64_t> bytes) { snapshot_bytes_ = std::move(bytes); }
  /// Adds the cache of keys and values for samples to the planned memory of every rank.
  void add_cache_to_plan(int64_t bytes) { cache_bytes_ = bytes; }
  /// Returns the size of a snapshot on this rank's pipeline stage. Returns nullopt if checkpoints are not
  /// saved in the background.
  std::optional<int64_t> snapshot_bytes() const { return snapshot_bytes(context_.engine().plan()); }
  /// The planned memory of this rank; the measured fields are 0.
  RankMemory planned() const { return planned(context_.engine().plan()); }
  /// The planned memory of each rank of the pipeline stage whose plan is `stage`; the measured fields are 0.
  RankMemory planned(const Plan& stage) const;
  /// Throws UnavailableError, on all ranks, if the planned memory exceeds the available memory of the machine or, on
  /// GPUs, the free memory of a GPU. On hosts, overcommit would otherwise let allocations succeed and kill a process
  /// later. Call it before the engine allocates memory. Collective.
  void require_fit() const;

  void enter(RunPhase phase) { system_peak_.enter(phase); }
  /// Measures the memory of this rank that the operating system counts and the ledger does not. Collective.
  void measure_outside();
  /// The first call calls measure_outside(); later calls do nothing. Call this after a step, when all memory has been
  /// touched. Collective.
  void measure_outside_once();
  /// Returns the maximum of each value so far, over all ranks. Collective.
  MemoryRecord most() const;
  /// Returns the planned and the measured memory of every rank. Collective.
  std::vector<RankMemory> by_rank();

 private:
  std::optional<int64_t> snapshot_bytes(const Plan& stage) const {
    if (snapshot_bytes_.empty()) return std::nullopt;
    return snapshot_bytes_[static_cast<size_t>(stage.stage.index)];
  }
  std::vector<int> ranks_of_memory() const;
  int64_t needed_bytes(const Plan& stage) const;
  void measure_outside_on_gpu();

  const TrainContext& context_;
  SystemPeak& system_peak_;
  std::vector<int64_t> snapshot_bytes_;  // one size for each pipeline stage; empty without background saves
  int64_t cache_bytes_ = 0;
  bool measured_outside_ = false;  // equal on all ranks, because the measurement is collective
  int64_t outside_bytes_ = 0, system_bytes_ = 0;
  GpuMemoryUse gpu_;   // measured with outside_bytes_
  int gpu_rank_ = -1;  // the first rank on the GPU of this rank; -1: none
};

}  // namespace aliquot
