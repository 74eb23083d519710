#include "sharding/signals.h"

#include <array>
#include <fmt/format.h>

namespace aliquot {
namespace {

// kind: 4 bits, dtype: 4, detail: 8, count: 48. Two hundred terabytes a message will do.
constexpr int kKindShift = 60, kDtypeShift = 56, kDetailShift = 48;
constexpr uint64_t kCountMask = (uint64_t{1} << kDetailShift) - 1;

}  // namespace

uint64_t OperationDescription::packed() const {
  return static_cast<uint64_t>(kind) << kKindShift | static_cast<uint64_t>(dtype) << kDtypeShift |
         static_cast<uint64_t>(detail) << kDetailShift | (static_cast<uint64_t>(count) & kCountMask);
}

OperationDescription OperationDescription::unpack(uint64_t packed) {
  return {.kind = static_cast<Kind>(packed >> kKindShift),
          .dtype = static_cast<DType>(packed >> kDtypeShift & 0xF),
          .detail = static_cast<uint8_t>(packed >> kDetailShift & 0xFF),
          .count = static_cast<int64_t>(packed & kCountMask)};
}

std::string OperationDescription::text() const {
  switch (kind) {
    case Kind::kNone: return "nothing";
    case Kind::kBarrier: return "barrier";
    case Kind::kBroadcast: return fmt::format("broadcast of {} bytes from rank {}", count, detail);
    case Kind::kReduceScatter: return fmt::format("reduce-scatter of {} {}", count, aliquot::name(dtype));
    case Kind::kAllReduce: return fmt::format("all-reduce of {} numbers", count);
    case Kind::kAllGather:
    case Kind::kAllToAll: return fmt::format("{} of {} bytes", name(kind), count);
  }
  return "unknown";
}

std::string_view name(OperationDescription::Kind kind) {
  static constexpr std::array<std::string_view, 7> kNames = {"nothing",   "all-gather", "reduce-scatter", "all-to-all",
                                                             "broadcast", "all-reduce", "barrier"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string label_text(std::string_view what, int64_t step) {
  if (what.empty() && step < 0) return {};
  if (step < 0) return fmt::format(" ({})", what);
  return what.empty() ? fmt::format(" (step {})", step) : fmt::format(" ({}, step {})", what, step);
}

}  // namespace aliquot
