#pragma once
// Thread ranks that repeat one operation, and the operations that communication_bench measures.

#include <barrier>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sharding/world.h"

namespace aliquot::bench {

/// Size of the input of a reduce-scatter and of the output of an all-gather, for one rank.
inline constexpr int64_t kBufferBytes = int64_t{64} << 20;
/// The number of times that one run gathers a unit as a view, which copies nothing. A single such gather is too short
/// to measure.
inline constexpr int kViewCount = 200;

/// Sets up a rank's buffers and returns a function. Each call of the function runs the operation on this rank.
using SetUp = std::function<std::function<void()>(World&)>;

/// Returns the set-up of the measured operation, which uses the world's communicator. `name` is "reduce_scatter",
/// "all_gather" or "view". Throws UsageError for other names.
SetUp operation(const std::string& name);

/// Returns a reference for the operation, for thread ranks and without a communicator. For a reduce-scatter it is one
/// loop that adds the parts of all ranks. For an all-gather it is a memcpy of the same bytes. Returns an empty function
/// for other names.
SetUp plain(const std::string& name);

/// Start and end of one run on one rank, in seconds of the steady clock.
struct Span {
  double begin_seconds = 0, end_seconds = 0;
};
Span time(const std::function<void()>& work);

/// Ranks as threads that sleep between runs.
class RankTeam {
 public:
  RankTeam(int rank_count, SetUp set_up);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  /// Runs the work once on all ranks. Returns the seconds from the first start to the last end.
  double run();

 private:
  void serve(World& world, const SetUp& set_up);

  std::barrier<> begin_, end_;
  std::vector<Span> spans_;
  bool stopping_ = false;
  std::thread ranks_;
};

/// Returns the seconds from the first start to the last end in `spans`.
double seconds_of(const std::vector<Span>& spans);

}  // namespace aliquot::bench
