#pragma once
// Descriptions of collectives. Ranks compare them before data moves, and messages print them.

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// Describes a collective, so that ranks detect different calls before they read data. Each arrival carries packed()
/// and the fingerprint. All communicators create descriptions with the functions below.
struct OperationDescription {
  enum class Kind : uint8_t {
    kNone,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBroadcast,
    kAllReduce,
    kBarrier,
    kTransfer,
    kGraph
  };
  Kind kind = Kind::kNone;
  DType dtype = DType::kUInt8;
  /// The root of a broadcast, or the Reduction of an all-reduce. 1 for an all-gather in place and for a transfer with
  /// Transfers::back. 0 for all other collectives.
  uint8_t detail = 0;
  uint64_t fingerprint = 0;  // hash of the label and the buffer offsets
  int64_t count = 0;         // number of elements, or of bytes for operations that copy bytes

  uint64_t packed() const;  // contains only the highest 8 bits of the fingerprint
  static OperationDescription unpack(uint64_t packed);
  std::string text() const;  // e.g. "reduce-scatter of 4096 float32"
};
std::string_view name(OperationDescription::Kind kind);

OperationDescription describe_all_gather(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label);
OperationDescription describe_all_gather_in_place(SymmetricRange whole, int64_t part_bytes, Label label);
OperationDescription describe_reduce_scatter(const ReduceScatter& what, Label label);
/// Throws UsageError if `staging` is null and `part_count` is not 0.
void expect_staging(const ReduceScatter& what);
OperationDescription describe_all_to_all(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label);
OperationDescription describe_transfer(const Transfers& what, Label label);
OperationDescription describe_broadcast(SymmetricRange range, int64_t size_bytes, int root, Label label);
OperationDescription describe_all_reduce(int64_t count, Reduction reduction, Label label);
OperationDescription describe_barrier(Label label);
OperationDescription describe_graph(Label label);

/// Returns text such as " (h.7, step 118)", or "" for an empty label.
std::string label_text(std::string_view what, int64_t step);
/// Returns " of the " and the name of the group, or "" for a group without a name.
std::string group_text(std::string_view group);

/// The collective that a rank has entered.
struct RankOperation {
  int rank = 0;  // global rank
  OperationDescription what;
  std::string label;  // from label_text()
};
/// Identifies a collective of a lane of a group in error messages.
struct CollectiveNumber {
  Lane lane;
  uint64_t sequence;
  std::string_view group;
};
/// Returns the error message for two ranks that arrived at one collective with different descriptions.
std::string mismatch_text(const CollectiveNumber& number, const RankOperation& own, const RankOperation& theirs);

}  // namespace aliquot
