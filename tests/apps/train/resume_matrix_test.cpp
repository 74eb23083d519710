// Saves and loads with every ordered pair of configurations (number of ranks and ZeRO stage). A run with the first
// configuration trains and saves. A run with the second loads and saves again. Both saves must have the same bytes.
#include <iostream>

#include "tests/apps/train/resume_runs.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Configuration {
  int rank_count, stage;
};

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  for (const int rank_count : {1, 2, 3, 4, 5, 7, 8}) {
    for (const int stage : {0, 1, 2, 3}) all.push_back({rank_count, stage});
  }
  return all;
}

TEST_F(Resume, EveryPairOfWorldsAndZeroStagesKeepsTheState) {
  const std::string file = checkpoint_name(2) + "/state.h5";
  int pairs = 0;
  for (const Configuration& from : configurations()) {
    // The training data depends on the world, so worlds of different sizes save different files.
    in_world(from.rank_count, [&](World& world) { run(world, settings(from.stage), 0, 2, {}, directory_ / "from"); });
    const std::string saved = bytes_of(directory_ / "from" / file);
    ASSERT_FALSE(saved.empty());
    for (const Configuration& to : configurations()) {
      in_world(to.rank_count,
               [&](World& world) { run(world, settings(to.stage), 2, 2, directory_ / "from", directory_ / "to"); });
      EXPECT_TRUE(bytes_of(directory_ / "to" / file) == saved)
          << from.rank_count << " ranks at ZeRO stage " << from.stage << " to " << to.rank_count
          << " ranks at ZeRO stage " << to.stage;
      ++pairs;
    }
  }
  std::cout << pairs << " pairs\n";
}

}  // namespace
}  // namespace aliquot
