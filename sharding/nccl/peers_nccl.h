#pragma once
// Communication, without NCCL, between the ranks of an NCCL group. Used for set-up and error handling.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sharding/comm/board_client.h"
#include "sharding/nccl/communicator_nccl.h"

namespace aliquot {

/// Identifies a collective that a rank issues.
struct CollectiveCall {
  OperationDescription what;
  uint64_t sequence = 0;  // index of the collective in its lane, from 1
  Lane lane = Lane::kCompute;
  Label label;
  std::string_view group;  // name of the group; empty: the world

  std::string text() const;  // e.g. "reduce-scatter of 4096 float32 #12 (h.7, step 118)": the 12th
};

/// A bootstrap and, if the group is on one node with shared memory, a board. Ranks compare their collectives on the
/// board before they issue them to NCCL. NCCL itself would hang if a rank is missing, and transfer wrong data if the
/// calls differ.
class NcclPeers {
 public:
  /// Collective; blocks.
  explicit NcclPeers(NcclSetup& setup);

  Bootstrap& bootstrap() { return *bootstrap_; }
  int rank() const { return bootstrap_->rank(); }
  int rank_count() const { return bootstrap_->rank_count(); }
  int global_rank() const { return bootstrap_->global_rank(rank()); }  // this rank's number in the world, for messages
  bool has_board() const { return client_.has_value(); }

  /// With a board, blocks until all ranks have arrived at the same collective. Throws CommunicationError, like Signals,
  /// and names the ranks that are missing or differ. Without a board, does nothing.
  void arrive_and_wait(const CollectiveCall& call);

  /// Like the functions of Bootstrap, but these also use the board. Callable from any thread.
  void abort(std::string_view why) noexcept;
  bool aborted(std::string* why) const;

 private:
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::optional<BoardClient> client_;
};

}  // namespace aliquot
