#pragma once
// Where a model's time goes, by kind of work.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

enum class Part : uint8_t { kOther, kProducts, kAttention, kLoss, kElementwise };
inline constexpr int kPartCount = 5;
/// "other", "products", ...
std::string_view name(Part part);

using PartSeconds = std::array<double, kPartCount>;  // by Part

/// Counts the time from here to its end as spent on `part`, for the calling thread; inside another, it takes the time from
/// that one. Costs two readings of the clock.
class TimedPart {
 public:
  explicit TimedPart(Part part);
  ~TimedPart();
  TimedPart(const TimedPart&) = delete;
  TimedPart& operator=(const TimedPart&) = delete;

 private:
  Part before_;
};

/// What the calling thread spent since it asked last; other: on nothing named here.
PartSeconds take_part_seconds();

}  // namespace aliquot
