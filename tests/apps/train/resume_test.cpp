// Saves and loads the state of engines. A resumed run must end with the state of an uninterrupted run, and any other
// world and ZeRO stage must load the same state.
#include "checkpoint/background_saver.h"
#include "checkpoint/difference.h"
#include "checkpoint/verify.h"
#include "tests/apps/train/resume_runs.h"

namespace aliquot {
namespace {

using namespace testing_model;

TEST_F(Resume, GivesTheStateOfAnUninterruptedRun) {
  for (const Optimizer& optimizer : {Optimizer(AdamW{}), Optimizer(Sgd{}), Optimizer(Lion{}), Optimizer(AdamW8bit{}),
                                     Optimizer(Muon{.lr = 6e-4f})}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Settings how = settings(stage, optimizer);
      in_world(3, [&](World& world) {
        run(world, how, 0, 5, {}, directory_ / "straight");
        run(world, how, 0, 2, {}, directory_ / "stopped");
        run(world, how, 2, 5, directory_ / "stopped", directory_ / "resumed");
      });
      const std::string file = checkpoint_name(5) + "/state.h5";
      EXPECT_TRUE(bytes_of(directory_ / "straight" / file) == bytes_of(directory_ / "resumed" / file))
          << name(optimizer) << ", ZeRO stage " << stage;
    }
  }
}

TEST_F(Resume, AnyWorldAndZeroStageLoadsTheSameState) {
  for (const Optimizer& optimizer : {Optimizer(AdamW{}), Optimizer(Muon{.lr = 6e-4f})}) {
    in_world(4, [&](World& world) { run(world, settings(3, optimizer), 0, 3, {}, directory_ / "first"); });
    const std::string first = bytes_of(directory_ / "first" / checkpoint_name(3) / "state.h5");
    ASSERT_FALSE(first.empty());
    for (const int rank_count : {1, 2, 3, 4, 5, 7, 8}) {
      for (const int stage : {0, 1, 2, 3}) {
        const Settings how = settings(stage, optimizer);
        in_world(rank_count, [&](World& world) { run(world, how, 3, 3, directory_ / "first", directory_ / "again"); });
        EXPECT_TRUE(bytes_of(directory_ / "again" / checkpoint_name(3) / "state.h5") == first)
            << name(optimizer) << ", " << rank_count << " ranks, ZeRO stage " << stage;
      }
    }
  }
}

/// Returns precisions that store the master in different ways: as the parameter itself, as a split master, as an fp32
/// master.
std::vector<Precision> precisions() {
  return {{},
          {.compute = DType::kBFloat16, .master = MasterForm::kSplit},
          {.compute = DType::kBFloat16, .master = MasterForm::kFp32},
          {.compute = DType::kFloat16}};
}

/// Trains 4 steps. A background save starts after the second step and runs during the third and fourth.
void run_with_background_save(World& world, const Settings& settings, const fs::path& at_2, const fs::path& at_4) {
  SmallModel model(settings.options.precision);
  Engine engine(world, settings.options);
  declare(engine, model);
  BackgroundSaver saver(world.communicator(), snapshot_bytes(engine.state()), &world.device().ledger());
  for (int step = 0; step < 4; ++step) {
    if (step == 2) saver.start(engine.state(), at_2, {});
    train_micro_batch(engine, model, step, 0, world.rank());
    EXPECT_FALSE(engine.step().skipped);
  }
  saver.collect();
  save(engine.state(), world.communicator(), at_4);
}

TEST_F(Resume, ABackgroundSaveHasTheStateAtItsStartAndDoesNotAffectTraining) {
  for (const Precision& precision : precisions()) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(precision.describe() + ", ZeRO stage " + std::to_string(stage));
      Settings how = settings(stage);
      how.options.precision = precision;
      in_world(3, [&](World& world) {
        run(world, how, 0, 2, {}, directory_ / "blocking");
        run(world, how, 0, 4, {}, directory_ / "straight");
        run_with_background_save(world, how, directory_ / "background", directory_ / "after");
      });
      const auto file = [&](const char* folder, int64_t step) {
        return bytes_of(directory_ / folder / checkpoint_name(step) / "state.h5");
      };
      ASSERT_FALSE(file("blocking", 2).empty());
      EXPECT_TRUE(file("background", 2) == file("blocking", 2));
      EXPECT_TRUE(file("after", 4) == file("straight", 4));
    }
  }
}

TEST_F(Resume, OtherPrecisionsKeepTheMaster) {
  Settings split = settings(3), full = settings(2), plain = settings(1);
  split.options.precision = {.compute = DType::kBFloat16, .master = MasterForm::kSplit};
  full.options.precision = {.compute = DType::kBFloat16, .master = MasterForm::kFp32};
  in_world(4, [&](World& world) { run(world, split, 0, 3, {}, directory_ / "split"); });
  in_world(3, [&](World& world) { run(world, plain, 3, 3, directory_ / "split", directory_ / "plain"); });
  in_world(2, [&](World& world) { run(world, full, 3, 3, directory_ / "plain", directory_ / "full"); });
  in_world(1, [&](World& world) { run(world, split, 3, 3, directory_ / "full", directory_ / "again"); });
  const std::string file = checkpoint_name(3) + "/state.h5", first = bytes_of(directory_ / "split" / file);
  ASSERT_FALSE(first.empty());
  for (const char* folder : {"plain", "full", "again"})
    EXPECT_TRUE(bytes_of(directory_ / folder / file) == first) << folder;
}

/// Moments are bf16, one layer is frozen and has no moments, and the model has a unit with shared parameters.
TEST_F(Resume, KeepsBf16MomentsWithAFrozenLayer) {
  const auto frozen = [](int stage) {
    Settings how = settings(stage);
    how.options.moments = DType::kBFloat16;
    return How(how, {}, true);
  };
  in_world(3, [&](World& world) {
    run(world, frozen(3), 0, 4, {}, directory_ / "straight");
    run(world, frozen(2), 0, 2, {}, directory_ / "stopped");
    run(world, frozen(3), 2, 4, directory_ / "stopped", directory_ / "resumed");
  });
  const std::string end = checkpoint_name(4) + "/state.h5", middle = checkpoint_name(2) + "/state.h5";
  const std::string straight = bytes_of(directory_ / "straight" / end),
                    stopped = bytes_of(directory_ / "stopped" / middle);
  EXPECT_TRUE(straight == bytes_of(directory_ / "resumed" / end));
  ASSERT_FALSE(straight.empty());
  for (const auto& [rank_count, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {4, 2}, {5, 3}}) {
    in_world(rank_count, [&, stage = stage](World& world) {
      run(world, frozen(stage), 2, 2, directory_ / "stopped", directory_ / "again");
    });
    EXPECT_TRUE(bytes_of(directory_ / "again" / middle) == stopped) << rank_count << " ranks, ZeRO stage " << stage;
  }
}

TEST_F(Resume, ReplicasHoldTheSameState) {
  in_world(3, [&](World& world) { run(world, settings(3), 0, 2, {}, directory_ / "first"); });
  const std::string file = checkpoint_name(2) + "/state.h5", first = bytes_of(directory_ / "first" / file);
  for (const int stage : {0, 1, 2, 3}) {
    Settings replicas = settings(stage);
    replicas.options.replicas = 2;
    in_world(4, [&](World& world) { run(world, replicas, 2, 2, directory_ / "first", directory_ / "replicas"); });
    EXPECT_TRUE(bytes_of(directory_ / "replicas" / file) == first) << "ZeRO stage " << stage;
    in_world(2, [&](World& world) { run(world, settings(stage), 2, 2, directory_ / "replicas", directory_ / "back"); });
    EXPECT_TRUE(bytes_of(directory_ / "back" / file) == first) << "ZeRO stage " << stage;
  }
}

/// The conversion of 8-bit moments to floats is exact. In the conversion back, a block of first moments gets a new
/// scale if its element of largest magnitude is negative. Second moments keep their bits.
TEST_F(Resume, MomentsAreConvertedBetween8BitAndFloat) {
  const Settings eight = settings(3, AdamW8bit{}), plain = settings(1);
  const How rounding(eight, {.allow_rounding = true}, false);
  in_world(4, [&](World& world) { run(world, eight, 0, 3, {}, directory_ / "eight"); });
  in_world(3, [&](World& world) { run(world, plain, 3, 3, directory_ / "eight", directory_ / "plain"); });
  in_world(2, [&](World& world) { run(world, settings(2), 3, 3, directory_ / "eight", directory_ / "plain again"); });
  in_world(2, [&](World& world) { run(world, rounding, 3, 3, directory_ / "plain", directory_ / "coded"); });
  in_world(5, [&](World& world) { run(world, plain, 3, 3, directory_ / "coded", directory_ / "decoded"); });
  in_world(1, [&](World& world) { run(world, rounding, 3, 3, directory_ / "decoded", directory_ / "coded again"); });
  in_world(3, [&](World& world) { run(world, rounding, 3, 5, directory_ / "coded", directory_ / "on"); });
  const auto file = [&](const char* folder) { return bytes_of(directory_ / folder / checkpoint_name(3) / "state.h5"); };
  ASSERT_FALSE(file("plain").empty());
  EXPECT_TRUE(file("plain") == file("plain again"));
  const auto difference = compare_checkpoints(open_verified(directory_ / "eight" / checkpoint_name(3)),
                                              open_verified(directory_ / "coded again" / checkpoint_name(3)));
  for (const TensorDifference& each : difference.tensors) {
    EXPECT_EQ(each.reason, "") << each.path;
    EXPECT_TRUE(each.path.ends_with("/exp_avg") || each.path.ends_with("/exp_avg_scale")) << each.path;
  }
  EXPECT_LT(file("eight").size(), file("plain").size());
  EXPECT_FALSE(bytes_of(directory_ / "on" / checkpoint_name(5) / "state.h5").empty());
}

}  // namespace
}  // namespace aliquot
