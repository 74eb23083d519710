#pragma once
// Signals between the ranks of a node, in stream order.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "sharding/comm/operation_description.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

/// One rank's access to the board that all ranks of a node share. Sequence numbers count the collectives of a lane from
/// 1.
class Signals {
 public:
  Signals() = default;
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  virtual ~Signals() = default;

  /// Signals, in stream order, that this rank has arrived at collective `sequence`: all earlier work of the stream is
  /// finished and visible to peers.
  virtual void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) = 0;
  /// Makes later work of the stream wait until all ranks have arrived at `sequence` with the same description.
  virtual void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) = 0;

  /// See Communicator::publish() and Communicator::await().
  virtual void publish(Stream& stream, uint64_t progress) = 0;
  virtual void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) = 0;

  /// Tells the ranks of the node that this rank arrives at the next rendezvous of the group. For messages.
  virtual void arrive_at_rendezvous(std::string_view /*purpose*/) noexcept {}
  /// Describes the last collective at which `rank` arrived, as Board::last_operation() does. Returns "" if unknown.
  virtual std::string last_operation(int /*rank*/) const { return {}; }

  virtual void abort(std::string_view why) noexcept = 0;
};

struct SignalsOptions {
  int rank = 0;
  int rank_count = 1;
  double timeout_seconds = 600;
  std::vector<int> global_ranks{};  // rank of each member in the world, for messages; empty: the group is the world
  std::string group{};              // name of the group, for messages; empty: the world

  // The functions below are optional. They are called after a rank has waited for some time.

  /// Returns whether an abort occurred that is not on the board, and stores its reason in `why`.
  std::function<bool(std::string* why)> aborted_elsewhere{};
  /// Returns whether the function of a rank has returned, so that the rank cannot arrive.
  std::function<bool(int rank)> has_returned{};
  /// Returns Bootstrap::awaited_by(rank). Called only on a rank's own thread.
  std::function<std::string(int rank)> awaited_by{};
  /// Tells an abort to ranks that do not read the board, because they wait at a rendezvous. Callable from any thread.
  std::function<void(std::string_view why)> abort_elsewhere{};

  int global_rank(int of_rank) const { return global_ranks.empty() ? of_rank : global_ranks[of_rank]; }
};

/// Returns signals for host streams. `board` has Board::size_bytes() zeroed bytes that all ranks share.
std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options);

}  // namespace aliquot
