// Executes training steps in which the passes of several micro-batches run in various orders, through Engine::next().
// Results are bitwise identical to those of the default order, and memory use equals the plan.
#include <cmath>
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

constexpr int kMicroBatches = 4;

/// The orders to compare with the default one: GPipe, 1F1B with two and with three micro-batches in flight, an order in
/// which the number in flight changes, and two orders with split backward passes.
std::vector<PassOrder> orders() {
  return {pass_order(PipelineSchedule::kGpipe, 1, kMicroBatches),
          parse_pass_order("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3"),
          parse_pass_order("0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3"),
          parse_pass_order("0F0,0B0,0F1,0F2,0F3,0B1,0B2,0B3"),
          parse_pass_order("0F0,0F1,0I0,0F2,0I1,0W0,0I2,0F3,0W1,0W2,0I3,0W3"),
          parse_pass_order("0F0,0B0,0F1,0F2,0I1,0I2,0W1,0W2,0F3,0B3")};
}

TEST(PassOrderTraining, DoesNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
      for (const int recompute : {0, 3}) {
        for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
          if (gather == GatherMode::kView && stage < 3) continue;
          EngineOptions options{.zero_stage = stage,
                                .accumulate = kMicroBatches,
                                .accumulate_into = into,
                                .recompute = recompute,
                                .gather = gather};
          const Trained reference = train_by_passes(2, options);
          ASSERT_TRUE(std::isfinite(reference.norms.back()));
          for (const PassOrder& order : orders()) {
            options.pass_order = order;
            EXPECT_TRUE(train_by_passes(2, options) == reference) << "ZeRO stage " << stage << ", " << text(order);
          }
        }
      }
    }
  }
}

TEST(PassOrderTraining, DoesNotChangeResultsWithOtherOptions) {
  const EngineOptions all[] = {
      {.reproducible = true},
      {.replicas = 2, .reproducible = true},
      {.zero_stage = 2, .replicas = 2},
      {.zero_stage = 3, .prefetch = 3, .keep_gathered = 3, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0},
      {.zero_stage = 3, .offload_state = Offload::kHost, .offload_parameters = Offload::kHost}};
  for (EngineOptions options : all) {
    options.accumulate = kMicroBatches;
    const Trained reference = train_by_passes(4, options);
    for (const PassOrder& order : orders()) {
      options.pass_order = order;
      EXPECT_TRUE(train_by_passes(4, options) == reference)
          << "ZeRO stage " << options.zero_stage << ", " << text(order);
    }
  }
}

TEST(PassOrderTraining, AdversarialSchedulingDoesNotChangeResults) {
  for (const int stage : {0, 2, 3}) {
    EngineOptions options{.zero_stage = stage, .accumulate = kMicroBatches, .recompute = 2};
    if (stage == 3) options.gather = GatherMode::kCopy;
    const Trained reference = train_by_passes(2, options);
    for (const PassOrder& order : orders()) {
      options.pass_order = order;
      for (uint64_t seed = 0; seed < 6; ++seed) {
        AdversarialScheduler adversary(
            seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
        EXPECT_TRUE(train_by_passes(2, options,
                                    {.timeout_seconds = 60,
                                     .make_device = [&](int) { return adversary.make_device(); }}) == reference)
            << "seed " << seed << ", ZeRO stage " << stage << ", " << text(order);
      }
    }
  }
}

/// Each micro-batch in flight has its own saved activations and outputs. Orders with split backwards also keep data
/// between the two parts, see PipelineTraining.ZeroBubbleKeepsWhatTheSecondPartsNeed.
TEST(PassOrderTraining, ActivationsAreThoseOfTheMicroBatchesInFlight) {
  const int64_t per_micro_batch = kBlocks * (kStreamBytes + kKeptBytes);
  for (const PassOrder& order : orders()) {
    if (text(order).find('W') != std::string::npos) continue;
    World::threads(
        1,
        [&](World& world) {
          EngineWithBlocks setup(world, {.accumulate = kMicroBatches, .pass_order = order, .recompute = 0});
          const Account account_of_order = account(setup.engine.plan().schedule);
          int64_t most = 0;
          for (const BytesByCategory& bytes : account_of_order.at)
            most = std::max(most, bytes[static_cast<std::size_t>(Category::kActivations)]);
          // Memory peaks in the backward of the last use, when the activations of all micro-batches in flight exist.
          // This backward also needs scratch and the gradient of its input.
          EXPECT_EQ(most, max_in_flight(order.front()) * per_micro_batch + kKeptBytes + kStreamBytes) << text(order);
        },
        kHosts);
  }
}

/// micro_batch(), forward() and backward() can be mixed with next(). The engine checks both against the same order of
/// passes.
TEST(PassOrderTraining, ScopesFollowTheSameOrder) {
  World::threads(
      1,
      [&](World& world) {
        EngineWithBlocks setup(world, {.accumulate = 2, .pass_order = pass_order(PipelineSchedule::kGpipe, 1, 2)});
        auto& [blocks, engine] = setup;
        for (int m = 0; m < 2; ++m) {
          engine.micro_batch();
          for (Unit& unit : engine.units()) {
            const Scope live = unit.forward();
            blocks.forward(engine, live.memory(), 0.1 * m);
          }
          if (m == 0) {
            EXPECT_NE(test::usage_error_message([&] {
                        (void)engine.units().back().backward();
                      }).find("the declared order expects forward of h.0"),
                      std::string::npos);
          }
        }
        for (int m = 0; m < 2; ++m) {
          blocks.select_sample(engine, 0.1 * m);
          for (int i = 0; i < kBlocks; ++i) {
            const auto work = engine.next();
            ASSERT_TRUE(work);
            EXPECT_EQ(work->micro_batch, m);
            blocks.backward(engine, work->memory());
          }
        }
        EXPECT_FALSE(engine.next());
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

TEST(PassOrderTraining, AnExceptionInAUseAbandonsTheStep) {
  World::threads(
      1,
      [&](World& world) {
        EngineWithBlocks setup(world, {.accumulate = kMicroBatches, .pass_order = orders().front()});
        auto& [blocks, engine] = setup;
        const auto throws = [&] {
          const auto work = engine.next();
          throw std::runtime_error("failure of the model");
        };
        EXPECT_THROW(throws(), std::runtime_error);
        EXPECT_NE(test::usage_error_message([&] { (void)engine.next(); }).find("this step was abandoned"),
                  std::string::npos);
        EXPECT_TRUE(engine.step().skipped);
        run_step(setup, 0.5);
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

TEST(PassOrderTraining, InvalidOrdersAreRefused) {
  World::threads(
      1,
      [&](World& world) {
        const auto refusal = [&](std::string_view lines) {
          return test::usage_error_message(
              [&] { EngineWithBlocks setup(world, {.accumulate = 2, .pass_order = parse_pass_order(lines)}); });
        };
        EXPECT_EQ(refusal("0F0,0B0,0F1"), "pass order of rank 0: 0B1 is missing");
        EXPECT_EQ(refusal("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1"),
                  "the pass order has lines for 2 ranks, but the pipeline has 1");
        EXPECT_EQ(refusal(",,"), "pass order of rank 0: 0F0 is missing");
        EXPECT_EQ(refusal("0F0,0I0,0F1,0B1"), "pass order of rank 0: 0W0 is missing");
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
