// Skipped steps are never silent.
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/system/log.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

std::mutex heard_mutex;
std::vector<std::string> heard;

class Skipped : public testing::Test {
 protected:
  void SetUp() override {
    heard.clear();
    set_log_sink([](std::string_view sentence) noexcept {
      const std::lock_guard lock(heard_mutex);
      heard.emplace_back(sentence);
    });
  }
  void TearDown() override { set_log_sink(nullptr); }
};

/// A step whose gradients are not finite, or that rank 1 abandons, or a good one.
enum class Kind { kGood, kNotFinite, kAbandoned };

StepReport take(EngineWithModel& trainee, int rank, Kind kind) {
  if (kind == Kind::kAbandoned && rank == 1) {
    trainee.engine.abandon();
  } else {
    const bool spoils = kind == Kind::kNotFinite && rank == 1;
    train_micro_batch(trainee.engine, trainee.model, 0, 0, rank,
                      spoils ? std::numeric_limits<float>::infinity() : 1.0f);
  }
  return trainee.engine.step();
}

template <typename Error>
std::string thrown(EngineWithModel& trainee, int rank, Kind kind) {
  try {
    (void)take(trainee, rank, kind);
  } catch (const Error& error) {
    constexpr bool kNotFinite = std::is_same_v<Error, NotFiniteError>;
    EXPECT_EQ(error.exit_code(), kNotFinite ? ExitCode::kNotFinite : ExitCode::kFault);
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(Skipped, AreToldByTheFirstRankWithTheirReason) {
  World::threads(
      2,
      [](World& world) {
        EngineWithModel trainee(world, {});
        for (const Kind kind : {Kind::kGood, Kind::kNotFinite, Kind::kAbandoned})
          EXPECT_EQ(take(trainee, world.rank(), kind).skipped, kind != Kind::kGood);
      },
      kHosts);
  EXPECT_EQ(heard, (std::vector<std::string>{"step 2 was skipped: the gradient of layer.0.bias is not finite",
                                             "step 3 was skipped: rank 1 abandoned it"}));
}

TEST_F(Skipped, AreToldWhereNothingCanBeSkipped) {
  World world = World::from_environment(kHosts);
  Settings settings;
  settings.options = {.update_in_backward = true, .clip = 0};
  EngineWithModel trainee(world, settings);
  train_micro_batch(trainee.engine, trainee.model, 0, 0, 0, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(trainee.engine.step().skipped);
  EXPECT_EQ(heard, (std::vector<std::string>{"step 1 was not skipped, as updates came in backward: the gradient of "
                                             "layer.0.bias is not finite"}));
}

TEST_F(Skipped, AreNotToldToWhoLooks) {
  World world = World::from_environment(kHosts);
  Settings settings;
  settings.options.tell_skipped = false;
  EngineWithModel trainee(world, settings);
  train_micro_batch(trainee.engine, trainee.model, 0, 0, 0, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(trainee.engine.step().skipped);
  EXPECT_TRUE(heard.empty());
}

TEST_F(Skipped, SoManyInARowEndTheRun) {
  World::threads(
      2,
      [](World& world) {
        Settings settings;
        settings.options.max_skipped = 2;
        EngineWithModel trainee(world, settings);
        const int rank = world.rank();
        for (const Kind kind : {Kind::kNotFinite, Kind::kGood, Kind::kAbandoned})
          EXPECT_EQ(take(trainee, rank, kind).skipped, kind != Kind::kGood);
        EXPECT_EQ(thrown<NotFiniteError>(trainee, rank, Kind::kNotFinite),
                  "step 4 was skipped: the gradient of layer.0.bias is not finite; that makes 2 in a row "
                  "(EngineOptions::max_skipped)");
        // The step was taken, and the engine goes on.
        EXPECT_EQ(trainee.engine.step_count(), 4);
        EXPECT_FALSE(take(trainee, rank, Kind::kGood).skipped);
        EXPECT_TRUE(take(trainee, rank, Kind::kNotFinite).skipped);
        EXPECT_EQ(thrown<FaultError>(trainee, rank, Kind::kAbandoned),
                  "step 7 was skipped: rank 1 abandoned it; that makes 2 in a row (EngineOptions::max_skipped)");
      },
      kHosts);
}

TEST_F(Skipped, ANumberBelowZeroIsRefused) {
  World world = World::from_environment(kHosts);
  try {
    Engine engine(world, {.max_skipped = -1});
    FAIL() << "nothing was refused";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "max_skipped is -1: expected 0, which is off, or a number of steps");
  }
}

}  // namespace
}  // namespace aliquot
