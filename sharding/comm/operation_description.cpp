#include "sharding/comm/operation_description.h"

#include <array>
#include <fmt/format.h>
#include <initializer_list>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Kind = OperationDescription::Kind;

// Number of bits for each member of a packed description: kind 4, dtype 4, detail 8, fingerprint 8 (its highest bits),
// count 40.
constexpr int kKindShift = 60, kDtypeShift = 56, kDetailShift = 48, kFingerprintShift = 40, kKeptFingerprintShift = 56;
constexpr uint64_t kCountMask = (uint64_t{1} << kFingerprintShift) - 1;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

// Returns a hash of the label and the offsets. Excludes the step of the label, because ranks may label the same
// collective with different steps.
uint64_t fingerprint_of(Label label, std::initializer_list<int64_t> offsets) {
  uint64_t hash = label.what.size();
  for (const char letter : label.what) hash = mix(hash, static_cast<unsigned char>(letter));
  for (const int64_t offset : offsets) hash = mix(hash, static_cast<uint64_t>(offset));
  return hash;
}

std::string_view reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMax: return "maximum";
    case Reduction::kMin: return "minimum";
  }
  return "unknown";
}

}  // namespace

uint64_t OperationDescription::packed() const {
  return static_cast<uint64_t>(kind) << kKindShift | static_cast<uint64_t>(dtype) << kDtypeShift |
         static_cast<uint64_t>(detail) << kDetailShift | fingerprint >> kKeptFingerprintShift << kFingerprintShift |
         (static_cast<uint64_t>(count) & kCountMask);
}

OperationDescription OperationDescription::unpack(uint64_t packed) {
  return {.kind = static_cast<Kind>(packed >> kKindShift),
          .dtype = static_cast<DType>(packed >> kDtypeShift & 0xF),
          .detail = static_cast<uint8_t>(packed >> kDetailShift & 0xFF),
          .fingerprint = (packed >> kFingerprintShift & 0xFF) << kKeptFingerprintShift,
          .count = static_cast<int64_t>(packed & kCountMask)};
}

std::string OperationDescription::text() const {
  switch (kind) {
    case Kind::kNone: return "nothing";
    case Kind::kBarrier: return "barrier";
    case Kind::kGraph: return "graph";
    case Kind::kBroadcast: return fmt::format("broadcast of {} bytes from the group's rank {}", count, detail);
    case Kind::kReduceScatter: return fmt::format("reduce-scatter of {} {}", count, aliquot::name(dtype));
    case Kind::kAllReduce:
      return fmt::format("all-reduce of {} numbers ({})", count, reduction_name(static_cast<Reduction>(detail)));
    case Kind::kAllGather: return fmt::format("{} of {} bytes{}", name(kind), count, detail == 0 ? "" : " in place");
    case Kind::kTransfer: return fmt::format("{} of {} bytes{}", name(kind), count, detail == 0 ? "" : " back");
    case Kind::kAllToAll: return fmt::format("{} of {} bytes", name(kind), count);
  }
  return "unknown";
}

std::string_view name(OperationDescription::Kind kind) {
  static constexpr std::array<std::string_view, 9> kNames = {"nothing",    "all-gather", "reduce-scatter",
                                                             "all-to-all", "broadcast",  "all-reduce",
                                                             "barrier",    "transfer",   "graph"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

OperationDescription describe_all_gather(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) {
  return {.kind = Kind::kAllGather,
          .fingerprint = fingerprint_of(label, {to.offset_bytes, from.offset_bytes}),
          .count = part_bytes};
}

OperationDescription describe_all_gather_in_place(SymmetricRange whole, int64_t part_bytes, Label label) {
  return {.kind = Kind::kAllGather,
          .detail = 1,
          .fingerprint = fingerprint_of(label, {whole.offset_bytes}),
          .count = part_bytes};
}

void expect_staging(const ReduceScatter& what) {
  if (what.staging == nullptr && what.part_count > 0)
    throw UsageError(
        "this reduce_scatter needs staging memory: set ReduceScatter::staging to a buffer of the size that "
        "reduce_staging() returns");
}

OperationDescription describe_reduce_scatter(const ReduceScatter& what, Label label) {
  return {.kind = Kind::kReduceScatter,
          .dtype = what.from_dtype,
          .fingerprint = fingerprint_of(label, {what.from.offset_bytes, what.in_tree_order, what.shift, what.alone}),
          .count = what.part_count};
}

OperationDescription describe_all_to_all(SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) {
  return {.kind = Kind::kAllToAll,
          .fingerprint = fingerprint_of(label, {to.offset_bytes, from.offset_bytes}),
          .count = part_bytes};
}

OperationDescription describe_transfer(const Transfers& what, Label label) {
  return {.kind = Kind::kTransfer,
          .detail = what.back,
          .fingerprint = fingerprint_of(label, {what.to.offset_bytes, what.from.offset_bytes}),
          .count = what.all_bytes};
}

OperationDescription describe_broadcast(SymmetricRange range, int64_t size_bytes, int root, Label label) {
  return {.kind = Kind::kBroadcast,
          .detail = static_cast<uint8_t>(root),
          .fingerprint = fingerprint_of(label, {range.offset_bytes, root}),
          .count = size_bytes};
}

OperationDescription describe_all_reduce(int64_t count, Reduction reduction, Label label) {
  return {.kind = Kind::kAllReduce,
          .dtype = DType::kFloat64,
          .detail = static_cast<uint8_t>(reduction),
          .fingerprint = fingerprint_of(label, {}),
          .count = count};
}

OperationDescription describe_barrier(Label label) {
  return {.kind = Kind::kBarrier, .fingerprint = fingerprint_of(label, {})};
}

OperationDescription describe_graph(Label label) {
  return {.kind = Kind::kGraph, .fingerprint = fingerprint_of(label, {})};
}

std::string label_text(std::string_view what, int64_t step) {
  if (what.empty() && step < 0) return {};
  if (step < 0) return fmt::format(" ({})", what);
  return what.empty() ? fmt::format(" (step {})", step) : fmt::format(" ({}, step {})", what, step);
}

std::string group_text(std::string_view group) { return group.empty() ? "" : fmt::format(" of the {}", group); }

std::string mismatch_text(const CollectiveNumber& number, const RankOperation& own, const RankOperation& theirs) {
  const std::string own_text = own.what.text() + own.label, their_text = theirs.what.text() + theirs.label;
  return fmt::format(
      "ranks disagree at collective #{} of the {} lane{}: rank {} is in {}, rank {} in {}{}; no data was exchanged",
      number.sequence, name(number.lane), group_text(number.group), own.rank, own_text, theirs.rank, their_text,
      own_text == their_text ? ", at a different offset in its buffer" : "");
}

}  // namespace aliquot
