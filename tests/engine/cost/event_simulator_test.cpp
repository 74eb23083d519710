// Compares the event simulator with a plain simulation, bit by bit.
#include "engine/cost/event_simulator.h"

#include <bit>
#include <gtest/gtest.h>
#include <random>

#include "tests/engine/cost/plain_simulation.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

using testing::RandomCase;

/// Draws prices from a few durations, which include 0, so that many operations end at the same time or take no time.
std::vector<Price> draw_prices(const Plan& plan, std::mt19937_64& random) {
  std::vector<Price> prices(plan.schedule.operations.size());
  for (Price& price : prices) {
    price.seconds = static_cast<double>(random() % 4);
    price.link_seconds = price.seconds * static_cast<double>(random() % 3) / 2;
    price.seconds_while_computing = random() % 2 == 0 ? 0 : price.seconds * 3;
    price.core_share = static_cast<double>(random() % 3) / 4;
  }
  return prices;
}

int64_t bits(double value) { return std::bit_cast<int64_t>(value); }

/// Expects the same times from both simulations. Adds the number of operations to `compared`.
void expect_equal(const std::vector<EventSimulator::StagePrices>& stages, bool compute_issues, double compute_speed,
                  int64_t& compared) {
  const EventSimulator simulator(stages, compute_issues, compute_speed);
  const testing::PlainSimulation plain(stages, compute_issues, compute_speed);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (int step = 0; step < EventSimulator::kSteps; ++step) {
      const auto& spans = simulator.spans(step, static_cast<int>(s));
      for (std::size_t id = 0; id < spans.size(); ++id) {
        const TimeSpan& expected = plain.spans(s)[static_cast<std::size_t>(step) * spans.size() + id];
        ASSERT_EQ(bits(spans[id].start_seconds), bits(expected.start_seconds)) << s << " " << step << " " << id;
        ASSERT_EQ(bits(spans[id].end_seconds), bits(expected.end_seconds)) << s << " " << step << " " << id;
        ++compared;
      }
    }
  }
}

/// Compares the simulations of a case with rates of a host, with rates of GPUs, and with random prices.
void compare(uint64_t seed, const RandomCase& drawn, int64_t& compared) {
  const std::vector<Plan> stages = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
  for (const CostModel& cost : {CostModel::typical_host(), CostModel::typical_gpu()}) {
    std::vector<EventSimulator::StagePrices> with_prices;
    for (const Plan& stage : stages) with_prices.push_back({&stage, prices(stage, cost)});
    expect_equal(with_prices, cost.compute_issues, 1, compared);
  }
  std::mt19937_64 random(seed);
  for (const bool compute_issues : {false, true}) {
    std::vector<EventSimulator::StagePrices> with_prices;
    for (const Plan& stage : stages) with_prices.push_back({&stage, draw_prices(stage, random)});
    expect_equal(with_prices, compute_issues, seed % 2 == 0 ? 1 : 0.5, compared);
  }
}

template <typename Draw>
void compare_random_cases(uint64_t count, const Draw& draw) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < count && !::testing::Test::HasFailure(); ++seed) {
    const RandomCase drawn = draw(seed);
    compare(seed, drawn, compared);
    EXPECT_FALSE(::testing::Test::HasFailure()) << testing::describe(seed, drawn);
  }
  EXPECT_GT(compared, 100'000);
}

TEST(EventSimulator, EqualsThePlainSimulationOfRandomPlans) {
  compare_random_cases(300, [](uint64_t seed) { return testing::draw(seed); });
}

TEST(EventSimulator, EqualsThePlainSimulationOfRandomPipelines) {
  compare_random_cases(1000, [](uint64_t seed) { return testing::draw_pipeline(seed); });
}

}  // namespace
}  // namespace aliquot
