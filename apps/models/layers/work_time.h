#pragma once
// Time that a model spends on each kind of work.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

enum class WorkKind : uint8_t { kOther, kProducts, kAttention, kLoss, kElementwise };
inline constexpr int kWorkKindCount = 5;
/// "other", "products", ...
std::string_view name(WorkKind part);

using WorkSeconds = std::array<double, kWorkKindCount>;  // indexed by WorkKind

/// Counts the calling thread's time during its lifetime as time spent on `part`. An outer timer does not count the time
/// of an inner one. Reads the clock twice.
class ScopedWorkTimer {
 public:
  explicit ScopedWorkTimer(WorkKind part);
  ~ScopedWorkTimer();
  ScopedWorkTimer(const ScopedWorkTimer&) = delete;
  ScopedWorkTimer& operator=(const ScopedWorkTimer&) = delete;

 private:
  WorkKind before_;
};

/// Seconds that the calling thread spent on each kind of work since its last call. kOther is time without a timer.
WorkSeconds drain_work_seconds();

}  // namespace aliquot
