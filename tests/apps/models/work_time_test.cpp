#include "apps/models/layers/work_time.h"

#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

namespace aliquot::test {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

double spent(const WorkSeconds& seconds, WorkKind part) { return seconds[static_cast<size_t>(part)]; }

TEST(WorkTime, AnOuterTimerExcludesTheTimeOfAnInnerOne) {
  drain_work_seconds();
  const double began = now_seconds();
  double outer_alone = 0;
  {
    const ScopedWorkTimer products(WorkKind::kProducts);
    rest();
    const double before_inner = now_seconds();
    {
      const ScopedWorkTimer elementwise(WorkKind::kElementwise);
      rest();
    }
    outer_alone = now_seconds() - began - (now_seconds() - before_inner);
  }
  rest();
  const WorkSeconds seconds = drain_work_seconds();
  const double elapsed = now_seconds() - began;
  for (const WorkKind part : {WorkKind::kProducts, WorkKind::kElementwise, WorkKind::kOther})
    EXPECT_GE(spent(seconds, part), 0.019);
  EXPECT_NEAR(spent(seconds, WorkKind::kProducts), outer_alone, 0.01);
  EXPECT_EQ(spent(seconds, WorkKind::kLoss), 0);
  EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end(), 0.0), elapsed, 0.01);
  EXPECT_LT(spent(drain_work_seconds(), WorkKind::kProducts), 0.001);  // the call above reset the times
}

TEST(WorkTime, EachThreadHasItsOwnTimes) {
  drain_work_seconds();
  std::thread([] {
    const ScopedWorkTimer loss(WorkKind::kLoss);
    rest();
  }).join();
  EXPECT_EQ(spent(drain_work_seconds(), WorkKind::kLoss), 0);
}

}  // namespace
}  // namespace aliquot::test
