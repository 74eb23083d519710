// An engine's state through a checkpoint: resuming is never having stopped, and any other world and stage holds the same.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;
namespace fs = std::filesystem;

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "aliquot-resume-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(directory_); }
  fs::path directory_;
};

Settings settings(int zero_stage, Optimizer optimizer = AdamW{}) {
  Settings settings;
  settings.options = {.zero_stage = zero_stage, .optimizer = optimizer, .clip = 0.5};
  return settings;
}

/// Trains steps [from, to), after loading from and before saving to a directory where given.
void run(World& world, const Settings& settings, int from, int to, const fs::path& load_from, const fs::path& save_to) {
  SmallModel model;
  Engine engine(world, settings.options);
  declare(engine, model);
  if (!load_from.empty()) {
    State state = engine.state();
    load(state, world.communicator(), load_from / checkpoint_name(from));
    engine.adopt(state);
  }
  for (int step = from; step < to; ++step) {
    train_micro_batch(engine, model, step, 0, world.rank());
    engine.step();
  }
  if (!save_to.empty()) save(engine.state(), world.communicator(), save_to);
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void in_world(int rank_count, const std::function<void(World&)>& body) {
  World::threads(rank_count, body, {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

TEST_F(Resume, IsNeverHavingStopped) {
  for (const Optimizer& optimizer : {Optimizer(AdamW{}), Optimizer(Sgd{}), Optimizer(Lion{})}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Settings how = settings(stage, optimizer);
      in_world(3, [&](World& world) {
        run(world, how, 0, 5, {}, directory_ / "straight");
        run(world, how, 0, 2, {}, directory_ / "stopped");
        run(world, how, 2, 5, directory_ / "stopped", directory_ / "resumed");
      });
      const std::string file = checkpoint_name(5) + "/state.h5";
      EXPECT_TRUE(bytes_of(directory_ / "straight" / file) == bytes_of(directory_ / "resumed" / file))
          << name(optimizer) << ", stage " << stage;
    }
  }
}

TEST_F(Resume, AnyWorldAndStageHoldsTheSameState) {
  in_world(4, [&](World& world) { run(world, settings(3), 0, 3, {}, directory_ / "first"); });
  const std::string first = bytes_of(directory_ / "first" / checkpoint_name(3) / "state.h5");
  ASSERT_FALSE(first.empty());
  for (const int rank_count : {1, 2, 3, 4, 5, 7, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      in_world(rank_count,
               [&](World& world) { run(world, settings(stage), 3, 3, directory_ / "first", directory_ / "again"); });
      EXPECT_TRUE(bytes_of(directory_ / "again" / checkpoint_name(3) / "state.h5") == first)
          << rank_count << " ranks, stage " << stage;
    }
  }
}

}  // namespace
}  // namespace aliquot
