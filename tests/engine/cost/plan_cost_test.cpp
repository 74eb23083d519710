// Measures the CPU time of planning and validation. The limits are far above the time on an idle machine, and far below
// the time of a planner with quadratic complexity.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string_view>

#include "engine/proof/validate.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

/// A model like a transformer, with twelve tensors per unit. Unit 0 is used twice.
ModelSpec model_of(int unit_count) {
  ModelSpec model;
  for (int u = 0; u < unit_count; ++u) {
    UnitSpec unit{fmt::format("h.{}", u), {}, GradientMode::kAdd};
    for (int t = 0; t < 12; ++t) {
      unit.parameters.push_back({.tensor = {fmt::format("h.{}.{}", u, t), {t % 3 == 0 ? 64 : 1024, 64 + u % 7}}});
    }
    model.units.push_back(std::move(unit));
    model.uses.push_back({u});
  }
  model.uses.push_back({0});
  return model;
}

/// Plans and validates a model for 1024 ranks. Prints both times and expects that each is below the limit.
void expect_within(int unit_count, const Policy& policy, double limit_seconds) {
  const ModelSpec model = model_of(unit_count);
  const Topology topology = testing::hosts(1024, 8);
  Plan planned;
  const double limit = limit_seconds * test::test_time_scale();
  const double planning = test::reference_cpu_seconds(limit, [&] { planned = plan(model, policy, topology); });
  std::vector<Defect> defects;
  const double validating = test::reference_cpu_seconds(limit, [&] { defects = validate(planned); });
  fmt::print(
      "ZeRO stage {}, {} micro-batches, {} units, 1024 ranks, {} operations: planned in {:.3f} s, validated in {:.3f} "
      "s\n",
      policy.zero_stage, policy.micro_batch_count, unit_count, planned.schedule.operations.size(), planning,
      validating);
  EXPECT_TRUE(defects.empty()) << defects.front().sentence;
  EXPECT_LT(planning, limit);
  EXPECT_LT(validating, limit);
}

TEST(PlanCost, TenThousandUnitsOnAThousandRanksTakeSeconds) {
  for (const int stage : {0, 1, 2, 3}) {
    expect_within(10000, {.zero_stage = stage}, 5);
    expect_within(
        10000, {.zero_stage = stage, .micro_batch_count = 4, .accumulate_into = AccumulateInto::kShard, .prefetch = 4},
        10);
  }
}

}  // namespace
}  // namespace aliquot
