// Faults that are staged in a step: where they strike, and that they come once. This program's own ALIQUOT_FAULT.
#include "engine/run/fault_injector.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

const int kStaged = setenv("ALIQUOT_FAULT", "rank=1,step=2,op=reduce,unit=layer.1,kind=nan", 1);

TEST(FaultInjector, KnowsEveryOperationOfASchedule) {
  for (const VerbInfo& verb : kVerbTable) {
    const std::string operation(verb.name);
    EXPECT_EQ(parse_injected_fault("kind=throw,op=" + operation, fault_points()).operation, operation);
  }
}

TEST(FaultInjector, KnowsWhatHasDataToSpoil) {
  const auto refused = [](const char* text) -> std::string {
    try {
      parse_injected_fault(text, fault_points());
    } catch (const UsageError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_NE(refused("op=gather,kind=nan").find("nan is for op=backward and op=reduce;"), std::string::npos);
  EXPECT_NE(refused("op=save,kind=flip").find("flip is for op=update and op=publish;"), std::string::npos);
}

TEST(FaultInjector, StrikesOnceAtTheOperationItIsFor) {
  ASSERT_EQ(kStaged, 0);
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
              EXPECT_EQ(report.skipped, step == 2) << "stage " << stage << ", step " << step;
              EXPECT_EQ(report.first_not_finite, step == 2 ? "layer.1.weight" : "");
            }
          },
          kHosts);
    }
  }
}

TEST(FaultInjector, RefusesARankThatIsNotThere) {
  try {
    World::threads(
        1,
        [](World& world) {
          SmallModel model;
          Engine engine(world, {});
          declare(engine, model);
        },
        kHosts);
    FAIL() << "rank 1 of one";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "ALIQUOT_FAULT is for rank 1, and there are 1 ranks.");
  }
}

}  // namespace
}  // namespace aliquot
