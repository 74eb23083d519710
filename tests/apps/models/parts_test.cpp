#include "apps/models/layers/parts.h"

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

double spent(const PartSeconds& seconds, Part part) { return seconds[static_cast<size_t>(part)]; }

TEST(Parts, EveryMomentIsCountedOnceAndAnInnerPartTakesItFromTheOuter) {
  take_part_seconds();
  const double began = now_seconds();
  double outer_alone = 0;
  {
    const TimedPart products(Part::kProducts);
    rest();
    const double before_inner = now_seconds();
    {
      const TimedPart elementwise(Part::kElementwise);
      rest();
    }
    outer_alone = now_seconds() - began - (now_seconds() - before_inner);
  }
  rest();
  const PartSeconds seconds = take_part_seconds();
  const double elapsed = now_seconds() - began;
  for (const Part part : {Part::kProducts, Part::kElementwise, Part::kOther}) EXPECT_GE(spent(seconds, part), 0.019);
  EXPECT_NEAR(spent(seconds, Part::kProducts), outer_alone, 0.01);
  EXPECT_EQ(spent(seconds, Part::kLoss), 0);
  EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end(), 0.0), elapsed, 0.01);
  EXPECT_LT(spent(take_part_seconds(), Part::kProducts), 0.001);  // begun anew
}

TEST(Parts, ThreadsCountForThemselves) {
  take_part_seconds();
  std::thread([] {
    const TimedPart loss(Part::kLoss);
    rest();
  }).join();
  EXPECT_EQ(spent(take_part_seconds(), Part::kLoss), 0);
}

}  // namespace
}  // namespace aliquot::test
