// Tests that an injected fault occurs once, at the chosen operation of a step. This program sets ALIQUOT_FAULT itself.
#include "engine/run/fault_injector.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

const int kSetenvResult = setenv("ALIQUOT_FAULT", "rank=1,step=2,op=reduce,unit=layer.1,kind=nan", 1);

TEST(FaultInjector, AcceptsEveryOperationOfASchedule) {
  for (const VerbInfo& verb : kVerbTable) {
    const std::string operation(verb.name);
    EXPECT_EQ(parse_injected_fault("kind=throw,op=" + operation, fault_points()).operation, operation);
  }
}

TEST(FaultInjector, RejectsKindsThatAnOperationDoesNotSupport) {
  const auto refused = [](const char* text) -> std::string {
    try {
      parse_injected_fault(text, fault_points());
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error was thrown";
  };
  EXPECT_NE(refused("op=gather,kind=nan").find("kind=nan requires op=backward or op=backward-weights or op=reduce;"),
            std::string::npos);
  EXPECT_NE(refused("op=save,kind=flip")
                .find("kind=flip requires op=forward or op=backward or "
                      "op=backward-weights or op=reduce or op=exchange or op=blend or op=update or op=publish;"),
            std::string::npos);
}

TEST(FaultInjector, CausesOneFaultAtTheChosenOperation) {
  ASSERT_EQ(kSetenvResult, 0);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int accumulate : {1, 2}) {
      World::threads(
          3,
          [&](World& world) {
            SmallModel model;
            Engine engine(world, {.zero_stage = stage, .accumulate = accumulate});
            declare(engine, model);
            for (int step = 1; step <= 4; ++step) {
              for (int m = 0; m < accumulate; ++m) train_micro_batch(engine, model, step, m, world.rank());
              const StepReport report = engine.step();
              EXPECT_EQ(report.skipped, step == 2) << "ZeRO stage " << stage << ", step " << step;
              EXPECT_EQ(report.first_not_finite, step == 2 ? "layer.1.weight" : "");
            }
          },
          kHosts);
    }
  }
}

TEST(FaultInjector, RejectsARankOutOfRange) {
  try {
    World::threads(
        1,
        [](World& world) {
          SmallModel model;
          Engine engine(world, {});
          declare(engine, model);
        },
        kHosts);
    FAIL() << "rank 1 was accepted in a world of one rank";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "ALIQUOT_FAULT is for rank 1: expected a rank below 1.");
  }
}

}  // namespace
}  // namespace aliquot
