#pragma once
// Access to parameters as fp32 values, independent of how the master is stored.

#include <memory>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "optim/update/update.h"
#include "sharding/state.h"

namespace aliquot {

/// The model reads the working copy. If the model computes in fp32, the working copy is also the master. Otherwise the
/// master is stored separately, split or in full (Precision). For frozen parameters and for shards that another rank
/// updates, this rank has only a working copy. Used between steps, from the rank's own thread. The plan, memory and
/// view must outlive it.
class Weights {
 public:
  Weights(const Plan& plan, const StepMemory& memory, const HostView& view, int rank);
  ~Weights();

  /// Reads elements [first, first + count) of the flat buffer as fp32. At ZeRO stage 3 they must be in this rank's
  /// shard.
  void read(int32_t flat, int64_t first, int64_t count, float* to) const;
  /// Writes the master and the working copy.
  void write(int32_t flat, int64_t first, int64_t count, const float* from) const;

  /// The first and the last of the ranks whose shards of the working copy this rank holds. At ZeRO stage 3, it holds
  /// only its own shard, otherwise those of all ranks.
  int first_rank() const { return holds_full_parameters_ ? 0 : rank_; }
  int last_rank() const { return holds_full_parameters_ ? plan_.topology.rank_count() - 1 : rank_; }

  /// The addresses that the fused update of the flat buffer reads and writes. Call during its update operation.
  Master master(int32_t flat) const;
  /// The object through which a checkpoint accesses pieces of the flat buffer, whose StatePiece::bytes point into the
  /// working copy. Returns null if the host can read these bytes directly and they are the master.
  const PieceAccess* access(int32_t flat) const;
  /// The address between steps of element `first` of the flat buffer, in the working copy.
  std::byte* working_copy(int32_t flat, int64_t first) const;

 private:
  class Access;
  /// The part of a range for which this rank stores a separate master, and its offset in the master.
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
  std::vector<std::unique_ptr<Access>> accesses_;  // one for each flat buffer
};

}  // namespace aliquot
