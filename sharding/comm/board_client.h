#pragma once
// One rank's hand on the board: it says where it is, and waits for the others.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "sharding/comm/board.h"
#include "sharding/comm/signals.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

/// Says things on the calling thread, at once. One thread a lane at a time; abort() from any.
class BoardClient {
 public:
  /// `memory` is zeroed memory of Board::size_bytes() that all ranks share; taken over.
  BoardClient(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options);

  void arrive(Lane lane, uint64_t sequence, const OperationDescription& what, Label label);
  void publish(Lane lane, uint64_t progress);
  void abort(std::string_view why) const noexcept { board_.abort(why); }

  const Board& board() const { return board_; }
  const SignalsOptions& options() const { return options_; }
  /// The rank's own, which made this.
  bool on_rank_thread() const { return std::this_thread::get_id() == rank_thread_; }
  /// Throws CommunicationError with the reason if any rank has called abort(), or if what the options ask tells of one.
  void throw_if_aborted() const;
  void throw_if_aborted_elsewhere() const;

 private:
  std::unique_ptr<NodeMapping> memory_;
  Board board_;
  SignalsOptions options_;
  std::thread::id rank_thread_ = std::this_thread::get_id();
};

/// The condition that every rank's counter has come to `value`. Small and copyable, as gates want it. open() and block()
/// throw CommunicationError at the deadline, which starts when first asked, after an abort, when a rank arrived with
/// another operation, and soon when a rank that did not come has returned, or waits for this one in a bootstrap; they post
/// the reason on the board. While all who are missing wait for ranks of another node, or this rank itself has not
/// published what it waits for, the deadline is twice as far.
struct AllRanksArrived {
  const BoardClient* client;
  Lane lane;
  bool is_arrival;  // or else published progress
  int next_rank = 0;
  uint64_t value;
  OperationDescription what;
  Label label;
  int64_t started_nanoseconds = 0;

  bool open();
  void block();

 private:
  const SharedCounter& counter(int rank) const;
  void check_same_operation(int rank) const;
  void check_failures_and_timeout() const;
  bool any_rank_missing() const;
  bool waits_for_other_node(int rank) const;
  bool returned_before_arriving(int rank) const;
  void check_ranks_in_bootstrap() const;
  [[noreturn]] void throw_timeout(double waited_seconds) const;
};

}  // namespace aliquot
