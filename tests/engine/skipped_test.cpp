// Tests that the engine logs every skipped step.
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/system/log.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

std::mutex messages_mutex;
std::vector<std::string> messages;

class Skipped : public testing::Test {
 protected:
  void SetUp() override {
    messages.clear();
    set_log_sink([](std::string_view sentence) noexcept {
      const std::lock_guard lock(messages_mutex);
      messages.emplace_back(sentence);
    });
  }
  void TearDown() override { set_log_sink(nullptr); }
};

/// A good step, a step with non-finite gradients on rank 1, or a step that rank 1 abandons.
enum class Kind { kGood, kNotFinite, kAbandoned };

StepReport run_step(EngineWithModel& setup, int rank, Kind kind) {
  if (kind == Kind::kAbandoned && rank == 1) {
    setup.engine.abandon();
  } else {
    const bool is_faulty = kind == Kind::kNotFinite && rank == 1;
    train_micro_batch(setup.engine, setup.model, 0, 0, rank, is_faulty ? std::numeric_limits<float>::infinity() : 1.0f);
  }
  return setup.engine.step();
}

template <typename Error>
std::string error_of_step(EngineWithModel& setup, int rank, Kind kind) {
  try {
    (void)run_step(setup, rank, kind);
  } catch (const Error& error) {
    constexpr bool kNotFinite = std::is_same_v<Error, NotFiniteError>;
    EXPECT_EQ(error.exit_code(), kNotFinite ? ExitCode::kNotFinite : ExitCode::kFault);
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(Skipped, StepsAreLoggedOnRank0WithTheReason) {
  World::threads(
      2,
      [](World& world) {
        EngineWithModel setup(world, {});
        for (const Kind kind : {Kind::kGood, Kind::kNotFinite, Kind::kAbandoned})
          EXPECT_EQ(run_step(setup, world.rank(), kind).skipped, kind != Kind::kGood);
      },
      kHosts);
  EXPECT_EQ(messages, (std::vector<std::string>{"step 2 was skipped: the gradient of layer.0.bias is not finite",
                                                "step 3 was skipped: rank 1 abandoned it"}));
}

TEST_F(Skipped, NonFiniteGradientsAreLoggedIfUpdatesCannotBeSkipped) {
  World world = World::from_environment(kHosts);
  Settings settings;
  settings.options = {.update_in_backward = true, .clip = 0};
  EngineWithModel setup(world, settings);
  train_micro_batch(setup.engine, setup.model, 0, 0, 0, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(setup.engine.step().skipped);
  EXPECT_EQ(messages,
            (std::vector<std::string>{"step 1 was not skipped, because units are updated in backward: the gradient of "
                                      "layer.0.bias is not finite"}));
}

TEST_F(Skipped, StepsAreNotLoggedIfTellSkippedIsFalse) {
  World world = World::from_environment(kHosts);
  Settings settings;
  settings.options.tell_skipped = false;
  EngineWithModel setup(world, settings);
  train_micro_batch(setup.engine, setup.model, 0, 0, 0, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(setup.engine.step().skipped);
  EXPECT_TRUE(messages.empty());
}

TEST_F(Skipped, TooManyStepsInARowThrow) {
  World::threads(
      2,
      [](World& world) {
        Settings settings;
        settings.options.max_skipped = 2;
        EngineWithModel setup(world, settings);
        const int rank = world.rank();
        for (const Kind kind : {Kind::kNotFinite, Kind::kGood, Kind::kAbandoned})
          EXPECT_EQ(run_step(setup, rank, kind).skipped, kind != Kind::kGood);
        EXPECT_EQ(error_of_step<NotFiniteError>(setup, rank, Kind::kNotFinite),
                  "step 4 was skipped: the gradient of layer.0.bias is not finite; skipped steps in a row: 2 "
                  "(limit EngineOptions::max_skipped)");
        // The step that threw is counted, and the engine remains usable.
        EXPECT_EQ(setup.engine.step_count(), 4);
        EXPECT_FALSE(run_step(setup, rank, Kind::kGood).skipped);
        EXPECT_TRUE(run_step(setup, rank, Kind::kNotFinite).skipped);
        EXPECT_EQ(
            error_of_step<FaultError>(setup, rank, Kind::kAbandoned),
            "step 7 was skipped: rank 1 abandoned it; skipped steps in a row: 2 (limit EngineOptions::max_skipped)");
      },
      kHosts);
}

TEST_F(Skipped, NegativeLimitThrows) {
  World world = World::from_environment(kHosts);
  try {
    Engine engine(world, {.max_skipped = -1});
    FAIL() << "no error was thrown";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "EngineOptions::max_skipped is -1: expected 0 (no limit) or a positive number of steps");
  }
}

}  // namespace
}  // namespace aliquot
