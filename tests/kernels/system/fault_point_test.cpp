// Tests that random faults depend on the seed, the rank, the name and the pass, and on nothing else.
#include "kernels/system/fault_point.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Passes each of two points 2000 times, on each of two ranks. Returns the passes that threw.
std::vector<std::string> thrown_at(const RandomFaults& faults, bool names_first) {
  set_random_faults(faults);
  std::vector<std::string> thrown;
  for (int i = 0; i < 4; ++i) {
    const int rank = names_first ? i / 2 : i % 2;
    const std::string name = (names_first ? i % 2 : i / 2) == 0 ? "reduce" : "write of a save";
    for (int pass = 1; pass <= 2000; ++pass) {
      try {
        fault_point(rank, name);
      } catch (const FaultError& error) {
        thrown.emplace_back(error.what());
      }
    }
  }
  std::ranges::sort(thrown);
  return thrown;
}

TEST(FaultPoint, DoesNothingUnlessFaultsAreSet) {
  EXPECT_FALSE(random_faults_enabled());
  EXPECT_TRUE(thrown_at({}, true).empty());
  EXPECT_TRUE(set_random_faults({}).empty());
}

TEST(FaultPoint, FaultsDependOnTheSeedAndNotOnTheOrderOfRanks) {
  const std::vector<std::string> first = thrown_at({.seed = 7, .probability = 0.01}, true);
  EXPECT_EQ(thrown_at({.seed = 7, .probability = 0.01}, false), first);
  EXPECT_NE(thrown_at({.seed = 8, .probability = 0.01}, true), first);
  set_random_faults({});
}

/// Three faults in four throw, and the others are delays.
TEST(FaultPoint, FaultsHaveTheProbability) {
  const std::vector<std::string> thrown = thrown_at({.seed = 3, .probability = 0.02}, true);
  const std::vector<std::string> all = set_random_faults({});
  EXPECT_FALSE(random_faults_enabled());
  EXPECT_NEAR(static_cast<double>(all.size()), 0.02 * 8000, 40);
  EXPECT_NEAR(static_cast<double>(thrown.size()), 0.015 * 8000, 35);
  EXPECT_TRUE(thrown.front().starts_with("injected fault: throw at ")) << thrown.front();
}

}  // namespace
}  // namespace aliquot
