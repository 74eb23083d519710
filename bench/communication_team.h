#pragma once
// Ranks that do the same thing again and again, to be timed.

#include <barrier>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sharding/world.h"

namespace aliquot::bench {

/// Bytes of what one rank brings to a reduce-scatter, or has after an all-gather.
inline constexpr int64_t kBufferBytes = int64_t{64} << 20;
/// Views taken in one run; a single one is too short to be timed.
inline constexpr int kViewCount = 200;

/// Sets up a rank's buffers and returns one run of its work.
using SetUp = std::function<std::function<void()>(World&)>;

/// The house's operations, over whichever world they are given: "reduce_scatter", "all_gather", "view".
/// Throws UsageError for another name.
SetUp operation(const std::string& name);

/// What they are compared with, done by as many plain threads on memory of their own: for a reduce-scatter, one loop that
/// reads every rank's part, adds and writes; for an all-gather, memcpy of the same bytes. Empty for others.
SetUp plain(const std::string& name);

/// When one run began and ended, on one rank.
struct Span {
  double begin_seconds = 0, end_seconds = 0;
};
Span time(const std::function<void()>& work);

/// Thread-ranks that sleep between runs.
class RankTeam {
 public:
  RankTeam(int rank_count, SetUp set_up);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  /// From when the first rank began to when the last ended.
  double run();

 private:
  void serve(World& world, const SetUp& set_up);

  std::barrier<> begin_, end_;
  std::vector<Span> spans_;
  bool stopping_ = false;
  std::thread ranks_;
};

/// The seconds of a run that took `spans`.
double seconds_of(const std::vector<Span>& spans);

}  // namespace aliquot::bench
