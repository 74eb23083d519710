#pragma once
// Where a model's time goes, by kind of work.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

enum class WorkKind : uint8_t { kOther, kProducts, kAttention, kLoss, kElementwise };
inline constexpr int kWorkKindCount = 5;
/// "other", "products", ...
std::string_view name(WorkKind part);

using WorkSeconds = std::array<double, kWorkKindCount>;  // by WorkKind

/// Counts the time from here to its end as spent on `part`, for the calling thread; inside another, it takes the time from
/// that one. Costs two readings of the clock.
class ScopedWorkTimer {
 public:
  explicit ScopedWorkTimer(WorkKind part);
  ~ScopedWorkTimer();
  ScopedWorkTimer(const ScopedWorkTimer&) = delete;
  ScopedWorkTimer& operator=(const ScopedWorkTimer&) = delete;

 private:
  WorkKind before_;
};

/// What the calling thread spent since it asked last; other: on nothing named here.
WorkSeconds drain_work_seconds();

}  // namespace aliquot
