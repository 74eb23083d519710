// Measures the idle time of pipeline stages, with a model whose computation only waits. Compares it with the simulator,
// and with the formula b / (m + b). Here m is the number of micro-batches. For p pipeline stages with v virtual stages
// each, b is (p - 1) / v. For zero bubble, b is (p - 1) / 3.
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <future>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "engine/cost/simulate.h"
#include "engine/engine.h"
#include "engine/options/enum_names.h"

namespace aliquot {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

constexpr int kUses = 8, kSteps = 3;
// Long enough that the time of messages between threads, about 0.1 ms per pass, is small.
constexpr double kForwardSeconds = 0.016, kBackwardSeconds = 0.032;

/// A model of eight units. The forward and the backward of each unit only sleep, so they use no core.
class WaitingModel {
 public:
  void declare(Engine& engine) {
    ActivationSpec activations{.uses = {}, .backward_bytes = 256};
    for (int u = 0; u < kUses; ++u) {
      engine.add_unit(fmt::format("h.{}", u)).add("w", {256}, &values_[u], &gradients_[u]);
      activations.uses.push_back({.output_bytes = 256, .splits_backward = true, .weight_inputs_bytes = 256});
    }
    engine.declare_activations(activations);
  }
  void run(const Work& work) {
    const auto began = Clock::now();
    // A forward takes as long as each part of a backward.
    const double seconds = work.kind == UseKind::kBackward ? kBackwardSeconds : kForwardSeconds;
    std::this_thread::sleep_for(Seconds(slowness_ * seconds));
    waited_ += Clock::now() - began;
  }
  /// Makes all passes longer by this factor.
  void slow_down(double slowness) { slowness_ = slowness; }
  double take_waited_seconds() { return std::exchange(waited_, Seconds(0)).count(); }

 private:
  float *values_[kUses], *gradients_[kUses];
  Seconds waited_{0};
  double slowness_ = 1;
};

EngineOptions options_of(PipelineSchedule schedule, int stages, int micro_batches) {
  const int all = schedule == PipelineSchedule::kInterleaved ? 2 * stages : stages;
  return {.zero_stage = 2,
          .accumulate = micro_batches,
          .pipeline = stages,
          .pipeline_schedule = schedule,
          .pipeline_cut = std::vector<int>(static_cast<std::size_t>(all), kUses / all)};
}

struct IdleShares {
  double measured = 0, simulated = 0;
};

/// Returns the smallest idle share of the first pipeline stage over several steps. Other programs can only add idle
/// time. The passes take `slowness` times as long as the constants above.
IdleShares idle_shares(const EngineOptions& options, double slowness) {
  IdleShares shares{.measured = 1};
  World::threads(options.pipeline,
                 [&](World& world) {
                   WaitingModel model;
                   model.slow_down(slowness);
                   Engine engine(world, options);
                   model.declare(engine);
                   engine.materialize(
                       [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
                   for (int step = 0; step < kSteps; ++step) {
                     const auto began = Clock::now();
                     while (const auto work = engine.next()) model.run(*work);
                     (void)engine.step();
                     const double seconds = Seconds(Clock::now() - began).count();
                     const double idle = 1 - model.take_waited_seconds() / seconds;
                     if (world.rank() == 0 && step > 0) shares.measured = std::min(shares.measured, idle);
                   }
                   if (world.rank() != 0) return;
                   CostModel cost = CostModel::typical_host();
                   cost.uses.assign(kUses, {slowness * kForwardSeconds, slowness * kBackwardSeconds});
                   shares.simulated = simulate(engine.pipeline_plans(), cost)[0].idle_share();
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1});
  return shares;
}

struct Case {
  PipelineSchedule schedule;
  int stages, micro_batches;

  double formula() const {
    const bool interleaved = schedule == PipelineSchedule::kInterleaved;
    const bool zero_bubble = schedule == PipelineSchedule::kZeroBubble;
    const double bubble = (stages - 1.0) / (interleaved ? 2 : zero_bubble ? 3 : 1);
    return bubble / (micro_batches + bubble);
  }
};

std::vector<Case> cases() {
  using enum PipelineSchedule;
  std::vector<Case> all;
  for (const auto schedule : {k1F1B, kGpipe, kInterleaved, kZeroBubble}) {
    for (const int stages : {2, 4}) {
      for (const int micro_batches : {4, 8}) {
        if (schedule == kGpipe && (micro_batches == 4 || stages == 2)) continue;
        // The bubble is 4 % of a step, too small to measure beside other programs.
        if (schedule == kZeroBubble && stages == 2 && micro_batches == 8) continue;
        all.push_back({schedule, stages, micro_batches});
      }
    }
  }
  return all;
}

/// Programs that run beside the test delay passes and messages, by a time that does not depend on the length of a pass.
/// So the passes are twice as long in each new attempt. A wrong order of passes fails in all of them.
IdleShares best_attempt(const Case& one) {
  constexpr int kAttempts = 4;
  // Zero bubble waits little, so it needs longer passes.
  double slowness = one.schedule == PipelineSchedule::kZeroBubble ? 3 : 1;
  IdleShares shares;
  for (int attempt = 0; attempt < kAttempts; ++attempt, slowness *= 2) {
    shares = idle_shares(options_of(one.schedule, one.stages, one.micro_batches), slowness);
    if (std::abs(shares.measured - one.formula()) <= 0.05 * one.formula()) break;
  }
  return shares;
}

TEST(PipelineBubble, MatchesTheFormulaAndTheSimulator) {
  // Ranks only sleep and use no core, so all cases can run at the same time.
  std::vector<std::future<IdleShares>> running;
  for (const Case& one : cases()) running.push_back(std::async(std::launch::async, best_attempt, one));
  auto next = running.begin();
  for (const Case& one : cases()) {
    const auto [measured, simulated] = next++->get();
    fmt::print("{} stages, {} micro-batches, {}: formula {:.4f}, simulated {:.4f}, measured {:.4f}\n", one.stages,
               one.micro_batches, enum_name(kPipelineScheduleWords, one.schedule), one.formula(), simulated, measured);
    EXPECT_NEAR(measured, one.formula(), 0.05 * one.formula());
    EXPECT_NEAR(measured, simulated, 0.05 * simulated);
  }
}

}  // namespace
}  // namespace aliquot
