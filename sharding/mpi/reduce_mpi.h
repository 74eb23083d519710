#pragma once
// Reduce-scatter across nodes.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/host_stream.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/reduce_staging.h"
#include "sharding/mpi/lane_mpi.h"

namespace aliquot {

/// The part of a reduce-scatter that comes after all ranks have met, for one lane. Works in the pieces of reduce_staging(), in
/// the caller's staging.
/// Where nodes are subtrees of the tree over ranks and hold several, a node's ranks add their node's part for every
/// rank elsewhere, each for those it serves, and one sum a node travels; elsewhere all leaves travel, and the receiver adds.
class NodeReducer {
 public:
  /// All must outlive it.
  NodeReducer(int64_t staging_places, const NodeRoutes& routes, MpiLane& lane);

  /// Both in the stream's order, one after the other: what to do, and doing it.
  void prepare(const ReduceScatter& what);
  void run(ThreadPool& pool, const Collective& collective);

  /// Whether messages of run() are under way: then MPI may still read and write the staging.
  bool busy() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.messages.empty(); });
  }

 private:
  /// A piece that is being added or is under way.
  struct Slot {
    std::byte* staging = nullptr;
    MpiRequests messages;
    std::vector<const std::byte*> sources;  // of the last sum
  };
  struct Piece {
    int64_t begin = 0, count = 0;  // elements of a part
  };

  void start(Slot& slot, Piece piece);
  void start_sums(Slot& slot, Piece piece);
  void start_leaves(Slot& slot, Piece piece);
  void finish(Slot& slot, Piece piece);
  void add(TreeSum sum);
  const std::byte* own_from(int rank, int part, int64_t begin) const;
  std::byte* stage(const Slot& slot, int64_t place) const;

  int64_t staging_places_;
  const NodeRoutes& routes_;
  MpiLane& lane_;
  std::array<Slot, 2> slots_;
  std::vector<const std::byte*> member_sources_;

  // Of the reduce-scatter that is running:
  ThreadPool* pool_ = nullptr;
  ReduceScatter what_;
  ReduceStaging cut_;
};

}  // namespace aliquot
