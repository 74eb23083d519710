#pragma once
// One rank's access to the board: posts its own arrivals and progress, and waits for other ranks.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "sharding/comm/board.h"
#include "sharding/comm/signals.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

/// Writes to the board immediately, on the calling thread. Each lane must be used by one thread at a time. abort() may
/// be called from any thread.
class BoardClient {
 public:
  /// `memory` has Board::size_bytes() zeroed bytes that all ranks share.
  BoardClient(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options);

  void arrive(Lane lane, uint64_t sequence, const OperationDescription& what, Label label);
  void publish(Lane lane, uint64_t progress);
  void arrive_at_rendezvous(std::string_view purpose) noexcept;
  void abort(std::string_view why) const noexcept;

  const Board& board() const { return board_; }
  const SignalsOptions& options() const { return options_; }
  /// Whether the calling thread is the rank's thread, on which this object was constructed.
  bool on_rank_thread() const { return std::this_thread::get_id() == rank_thread_; }
  /// Throws CommunicationError with the reason if a rank has posted an abort on the board.
  void throw_if_aborted() const;
  /// Throws CommunicationError with the reason if SignalsOptions::aborted_elsewhere reports an abort.
  void throw_if_aborted_elsewhere() const;

 private:
  std::unique_ptr<NodeMapping> memory_;
  Board board_;
  SignalsOptions options_;
  std::thread::id rank_thread_ = std::this_thread::get_id();
};

/// The condition that every rank's counter has reached `value`. Copyable, so that a Gate can store it. The timeout
/// starts at the first call of open(). open() and block() throw CommunicationError, and post its reason on the board:
/// - after an abort, and if a rank arrived with a different operation;
/// - if a missing rank has returned from its function, or waits for this rank in a rendezvous;
/// - at the deadline. The timeout is doubled while all missing ranks wait for another node, or while this rank's own
///   counter is below `value`.
struct AllRanksArrived {
  const BoardClient* client;
  Lane lane;
  bool is_arrival;  // true: waits for arrivals; false: waits for published progress
  int next_rank = 0;
  uint64_t value;
  OperationDescription what;
  Label label;
  int64_t started_nanoseconds = 0;

  bool open();
  void block();

 private:
  const SharedCounter& counter(int rank) const;
  std::string wait_text() const;
  void check_same_operation(int rank) const;
  void check_failures_and_timeout() const;
  bool any_rank_missing() const;
  bool waits_for_other_node(int rank) const;
  bool returned_before_arriving(int rank) const;
  std::string missing_text(int rank) const;
  void check_ranks_in_bootstrap() const;
  [[noreturn]] void throw_timeout(double waited_seconds) const;
};

}  // namespace aliquot
