#pragma once
// Telling peers on this node, and waiting for them, in the order of a stream.

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

/// One rank's side of the board that all ranks of a node share. Sequence numbers count the collectives of one lane from 1.
class Signals {
 public:
  Signals() = default;
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  virtual ~Signals() = default;

  /// In the stream's order: everything before is done and readable by peers; this rank has come to collective `sequence`.
  virtual void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) = 0;
  /// Work after this starts only when all ranks have arrived at `sequence` with the same description.
  virtual void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) = 0;

  virtual void publish(Stream& stream, uint64_t progress) = 0;
  virtual void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) = 0;

  virtual void abort(std::string_view why) noexcept = 0;
};

struct SignalsOptions {
  int rank = 0;
  int rank_count = 1;
  double timeout_seconds = 600;
  std::vector<int> global_ranks{};  // what the ranks are called in messages, where these are part of a larger group
  /// Optional: tells, with the reason, of an abort that is not said on the board. Asked by ranks that have waited for long.
  std::function<bool(std::string* why)> aborted_elsewhere{};
  /// Optional: tells that the function of a rank has returned, so that nothing more comes from it. Asked as the above.
  std::function<bool(int rank)> has_returned{};
  /// Optional: Bootstrap::awaited_by(). Asked as the above, by ranks whose own threads wait.
  std::function<std::string(int rank)> awaited_by{};

  int global_rank(int of_rank) const { return global_ranks.empty() ? of_rank : global_ranks[of_rank]; }
};

/// Signals for host streams. `board` is zeroed memory of Board::size_bytes() that all ranks share; taken over.
std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options);

}  // namespace aliquot
