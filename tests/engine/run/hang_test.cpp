// One rank stalls during a step. The other ranks stop at the deadline, name this rank and report their own position.
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/system/log.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Outcome {
  std::string error, log;
  double seconds;
};

/// Runs two steps with a deadline of 0.5 s. Rank 1 sleeps for 1.5 s before the second step.
Outcome hang(int stage, int ranks) {
  set_log_sink(log_to_standard_error);
  testing::internal::CaptureStderr();
  const auto began = std::chrono::steady_clock::now();
  Outcome outcome;
  try {
    World::threads(ranks,
                   [&](World& world) {
                     SmallModel model;
                     Engine engine(world,
                                   {.zero_stage = stage, .gather = stage == 3 ? GatherMode::kCopy : GatherMode::kAuto});
                     declare(engine, model);
                     train_micro_batch(engine, model, 0, 0, world.rank());
                     EXPECT_FALSE(engine.step().skipped);
                     if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                     train_micro_batch(engine, model, 1, 0, world.rank());
                     EXPECT_FALSE(engine.step().skipped);
                   },
                   {.device = DeviceChoice::kHost, .timeout_seconds = 0.5});
  } catch (const CommunicationError& error) {
    outcome.error = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  outcome.log = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Hang, EndsAtTheDeadlineWithThePositionOfEveryRank) {
  for (const int stage : {0, 3}) {
    const Outcome outcome = hang(stage, 3);
    EXPECT_NE(outcome.error.find("rank 1"), std::string::npos) << outcome.error;
    EXPECT_LT(outcome.seconds, 3);
    EXPECT_NE(outcome.log.find("aliquot: rank 0 was at "), std::string::npos) << outcome.log;
    EXPECT_NE(outcome.log.find("aliquot: rank 2 was at "), std::string::npos) << outcome.log;
    EXPECT_NE(outcome.log.find("step 2)"), std::string::npos) << outcome.log;
  }
}

}  // namespace
}  // namespace aliquot
