#pragma once
// Reduce-scatter between nodes.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/host_stream.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/reduce_staging.h"
#include "sharding/mpi/lane_mpi.h"

namespace aliquot {

/// Performs the reduce-scatters of one lane after all ranks have arrived. Processes pieces of the size that
/// reduce_staging() returns, in the caller's staging memory.
///
/// If Topology::nodes_add_first(), and without ReduceScatter::alone, each rank adds its node's contributions for every
/// remote rank that it serves, and sends that rank one sum. Otherwise every rank sends its contribution to every remote
/// rank, which adds the contributions.
class NodeReducer {
 public:
  /// `routes` and `lane` must outlive this object.
  NodeReducer(const Topology& topology, const NodeRoutes& routes, MpiLane& lane);

  /// prepare() stores the arguments and run() performs the reduce-scatter. Both must be called in stream order.
  void prepare(const ReduceScatter& what);
  void run(ThreadPool& pool, const Collective& collective);

  /// Returns whether messages of run() are in flight. If so, MPI may still access the staging memory.
  bool busy() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.messages.empty(); });
  }

 private:
  /// Staging memory for one piece that is being transferred or added.
  struct Slot {
    std::byte* staging = nullptr;
    MpiRequests messages;
    std::vector<const std::byte*> sources;  // operands of the final sum
  };
  struct Piece {
    int64_t begin = 0, count = 0;  // a piece has elements [begin, begin + count) of each part
  };

  void start(Slot& slot, Piece piece);
  void start_sums(Slot& slot, Piece piece);
  void start_leaves(Slot& slot, Piece piece);
  void finish(Slot& slot, Piece piece);
  void add(TreeSum sum);
  const std::byte* own_from(int rank, int destination, int64_t begin) const;
  std::byte* stage(const Slot& slot, int64_t place) const;

  std::array<StagingPlaces, 2> staging_places_;  // [1]: with ReduceScatter::alone
  const NodeRoutes& routes_;
  MpiLane& lane_;
  std::array<Slot, 2> slots_;
  std::vector<const std::byte*> member_sources_;

  // State of the running reduce-scatter.
  ThreadPool* pool_ = nullptr;
  ReduceScatter what_;
  bool nodes_add_first_ = false;
  ReduceStaging cut_;
};

}  // namespace aliquot
