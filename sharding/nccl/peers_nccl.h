#pragma once
// The ranks of an NCCL group, reached otherwise than over NCCL.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sharding/comm/board_client.h"
#include "sharding/nccl/communicator_nccl.h"

namespace aliquot {

/// Where a rank is, for messages.
struct CollectiveCall {
  OperationDescription what;
  uint64_t sequence = 0;  // counts the collectives of a lane from 1
  Lane lane = Lane::kCompute;
  Label label;

  std::string text() const;  // "reduce-scatter of 4096 float32 #12 (h.7, step 118)"
};

/// A bootstrap always and, where the group shares a node's memory, a board on which ranks meet before they give a
/// collective to NCCL. NCCL itself only hangs when a rank is missing, and reads wrong bytes when ranks differ.
class NcclPeers {
 public:
  /// Collective and blocking.
  explicit NcclPeers(NcclSetup& setup);

  Bootstrap& bootstrap() { return *bootstrap_; }
  int rank() const { return bootstrap_->rank(); }
  int rank_count() const { return bootstrap_->rank_count(); }
  int global_rank() const { return bootstrap_->global_rank(rank()); }  // of this rank, in messages
  bool has_board() const { return client_.has_value(); }

  /// With a board: blocks until every rank has come to the same call; throws CommunicationError, naming who is missing
  /// or differs, as Signals do. Without one: nothing.
  void arrive_and_wait(const CollectiveCall& call);

  /// From any thread.
  void abort(std::string_view why) noexcept;
  bool aborted(std::string* why) const;

 private:
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::optional<BoardClient> client_;
};

}  // namespace aliquot
