#pragma once
// Telling peers on this node, and waiting for them, in the order of a stream.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/stream.h"
#include "sharding/communicator.h"
#include "sharding/node_memory.h"

namespace aliquot {

/// What a collective is, so that ranks that disagree find out before a byte is read. Packed into the 64 bits that travel
/// with each arrival.
struct OperationDescription {
  enum class Kind : uint8_t { kNone, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kAllReduce, kBarrier };
  Kind kind = Kind::kNone;
  DType dtype = DType::kUInt8;
  uint8_t detail = 0;  // the root, the reduction
  int64_t count = 0;   // elements, or bytes where the operation moves bytes

  uint64_t packed() const;
  static OperationDescription unpack(uint64_t packed);
  std::string text() const;  // "reduce-scatter of 4096 float32"
};
std::string_view name(OperationDescription::Kind kind);

/// " (h.7, step 118)", or nothing for an empty label.
std::string label_text(std::string_view what, int64_t step);

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
  std::vector<int> names;  // what the ranks are called in messages, where these are part of a larger group

  int name_of(int of_rank) const { return names.empty() ? of_rank : names[of_rank]; }
};

/// Signals for host streams. `board` is zeroed memory of Board::size_bytes() that all ranks share; taken over.
std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options);

}  // namespace aliquot
