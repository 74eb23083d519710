#pragma once
// Helpers for the resume tests. They train the small model, and save and load its state.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "tests/engine/small_model.h"

namespace aliquot::testing_model {

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

inline Settings settings(int zero_stage, Optimizer optimizer = AdamW{}) {
  Settings settings;
  settings.options = {.zero_stage = zero_stage, .optimizer = optimizer, .clip = 0.5};
  return settings;
}

/// How a run trains and loads.
struct How {
  // NOLINTNEXTLINE(google-explicit-constructor): so that run() accepts Settings
  How(Settings of) : settings(std::move(of)) {}
  How(Settings of, LoadOptions with, bool freezes) : settings(std::move(of)), load(with), freezes_a_layer(freezes) {}
  Settings settings;
  LoadOptions load = {};
  bool freezes_a_layer = false;
};

/// Trains the steps [from, to). Before that, loads from `load_from` if this path is not empty. After that, saves to
/// `save_to` if that path is not empty.
inline void run(World& world, const How& how, int from, int to, const fs::path& load_from, const fs::path& save_to) {
  SmallModel model(how.settings.options.precision);
  Engine engine(world, how.settings.options);
  declare(engine, model);
  if (how.freezes_a_layer) {
    engine.set_trainable("layer.0", false);
    model.frozen[1] = model.frozen[2] = true;
  }
  if (!load_from.empty()) {
    State state = engine.state();
    load(state, world.communicator(), load_from / checkpoint_name(from), how.load);
    engine.adopt(state);
  }
  for (int step = from; step < to; ++step) {
    train_micro_batch(engine, model, step, 0, world.rank());
    EXPECT_FALSE(engine.step().skipped);
  }
  if (!save_to.empty()) save(engine.state(), world.communicator(), save_to);
}

inline std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void in_world(int rank_count, const std::function<void(World&)>& body) {
  World::threads(rank_count, body, {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

}  // namespace aliquot::testing_model
