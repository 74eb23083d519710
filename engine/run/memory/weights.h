#pragma once
// Every parameter's fp32 master, however it is kept.

#include <memory>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "optim/update/update.h"
#include "sharding/state.h"

namespace aliquot {

/// The master is the parameters themselves where the model computes in fp32; else it is split, or whole beside the working
/// copy (Precision). What is frozen, and what another rank updates, is here as its working copy alone. Used between steps,
/// from the rank's own thread. The plan, memory and view must outlive it.
class Weights {
 public:
  Weights(const Plan& plan, const StepMemory& memory, const HostView& view, int rank);
  ~Weights();

  /// Elements [first, first + count) of the flat, as fp32. At stage 3 only of the own shard.
  void read(int32_t flat, int64_t first, int64_t count, float* to) const;
  /// The other way round: the master, and the working copy with it.
  void write(int32_t flat, int64_t first, int64_t count, const float* from) const;

  /// Ranks whose shards of the working copy lie here: at stage 3 the own alone.
  int first_rank() const { return holds_full_parameters_ ? 0 : rank_; }
  int last_rank() const { return holds_full_parameters_ ? plan_.topology.rank_count() - 1 : rank_; }

  /// As the fused update takes what this rank updates, while it is in the arena.
  Master master(int32_t flat) const;
  /// As a checkpoint reaches the pieces of the flat, whose bytes are working_copy(); null where they are the master themselves.
  const PieceAccess* access(int32_t flat) const;
  /// Where element `first` of the flat lies in the working copy between steps.
  std::byte* working_copy(int32_t flat, int64_t first) const;

 private:
  class Access;
  /// The part of a range that this rank keeps the master of.
  struct OwnedRange {
    int64_t first, last, master_first;
  };
  OwnedRange owned_range(int32_t flat, int64_t first, int64_t count) const;
  void read_master(int32_t flat, const OwnedRange& own, float* to) const;
  void write_master(int32_t flat, const OwnedRange& own, const float* from) const;
  void read_working(int32_t flat, int64_t first, int64_t count, float* to) const;
  void write_working(int32_t flat, int64_t first, int64_t count, const float* from) const;

  const Plan& plan_;
  const StepMemory& memory_;
  const HostView& view_;
  int rank_;
  bool holds_full_parameters_;
  std::vector<std::unique_ptr<Access>> accesses_;  // by flat
};

}  // namespace aliquot
