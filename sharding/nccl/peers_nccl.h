#pragma once
// The ranks of an NCCL group, reached otherwise than over NCCL.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sharding/comm/board_side.h"
#include "sharding/nccl/communicator_nccl.h"

namespace aliquot {

/// Where a rank is, for messages.
struct Errand {
  OperationDescription what;
  uint64_t sequence = 0;  // counts the collectives of a lane from 1
  Lane lane = Lane::kCompute;
  Label label;

  std::string text() const;  // "reduce-scatter of 4096 float32 #12 (h.7, step 118)"
};

/// An exchange always and, where the group shares a node's memory, a board on which ranks meet before they give a
/// collective to NCCL. NCCL itself only hangs when a rank is missing, and reads wrong bytes when ranks differ.
class NcclPeers {
 public:
  /// Collective and blocking.
  explicit NcclPeers(NcclSetup& setup);

  Exchange& exchange() { return *exchange_; }
  int rank() const { return exchange_->rank(); }
  int rank_count() const { return exchange_->rank_count(); }
  int name() const { return exchange_->name_of(rank()); }  // of this rank, in messages
  bool has_board() const { return side_.has_value(); }

  /// With a board: blocks until every rank has come to the same errand; throws CommunicationError, naming who is missing
  /// or differs, as Signals do. Without one: nothing.
  void meet(const Errand& errand);

  /// From any thread.
  void abort(std::string_view why) noexcept;
  bool aborted(std::string* why) const;

 private:
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::optional<BoardSide> side_;
};

}  // namespace aliquot
