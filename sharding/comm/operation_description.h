#pragma once
// What a collective is, in two numbers and in words.

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// What a collective is, so that ranks that disagree find out before a byte is read. It travels with each arrival, packed and
/// with its fingerprint. Made by the functions below, the same way in every communicator.
struct OperationDescription {
  enum class Kind : uint8_t {
    kNone,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBroadcast,
    kAllReduce,
    kBarrier,
    kTransfer
  };
  Kind kind = Kind::kNone;
  DType dtype = DType::kUInt8;
  uint8_t detail = 0;        // the root, the reduction, 1 for a gather in place or a transfer back
  uint64_t fingerprint = 0;  // of what it is for and where in its buffers: another where one of these is another
  int64_t count = 0;         // elements, or bytes where the operation moves bytes

  uint64_t packed() const;  // with the highest 8 bits of the fingerprint, which is what records keep of it
  static OperationDescription unpack(uint64_t packed);
  std::string text() const;  // "reduce-scatter of 4096 float32"
};
std::string_view name(OperationDescription::Kind kind);

OperationDescription describe_all_gather(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label);
OperationDescription describe_all_gather_in_place(SymmetricRange whole, int64_t part_bytes, Label label);
OperationDescription describe_reduce_scatter(const ReduceScatter& what, Label label);
OperationDescription describe_all_to_all(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label);
OperationDescription describe_transfer(const Transfers& what, Label label);
OperationDescription describe_broadcast(SymmetricRange range, int64_t size_bytes, int root, Label label);
OperationDescription describe_all_reduce(int64_t count, Reduction reduction, Label label);
OperationDescription describe_barrier(Label label);

/// " (h.7, step 118)", or nothing for an empty label.
std::string label_text(std::string_view what, int64_t step);

/// Where one of two ranks that disagree is.
struct RankOperation {
  int rank = 0;  // as it is called in messages
  OperationDescription what;
  std::string label;  // as label_text() has it
};
/// The sentence of ranks that came to the `sequence`-th collective of a lane with different descriptions.
std::string mismatch_text(Lane lane, uint64_t sequence, const RankOperation& own, const RankOperation& theirs);

}  // namespace aliquot
