#pragma once
// Time that a model spends on each kind of work.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

enum class WorkKind : uint8_t { kOther, kProducts, kAttention, kLoss, kElementwise };
inline constexpr int kWorkKindCount = 5;
/// The name of `part` in metrics: "other", "products", ...
std::string_view name(WorkKind part);

using WorkSeconds = std::array<double, kWorkKindCount>;  // one element for each WorkKind

/// Counts the calling thread's time during the lifetime of the object as time spent on `part`. If timers are nested,
/// only the innermost counts. The constructor and the destructor each read the clock once.
class ScopedWorkTimer {
 public:
  explicit ScopedWorkTimer(WorkKind part);
  ~ScopedWorkTimer();
  ScopedWorkTimer(const ScopedWorkTimer&) = delete;
  ScopedWorkTimer& operator=(const ScopedWorkTimer&) = delete;

 private:
  WorkKind before_;
};

/// Seconds that the calling thread spent on each kind of work since it last called this function. kOther is the time
/// without a timer.
WorkSeconds drain_work_seconds();

}  // namespace aliquot
