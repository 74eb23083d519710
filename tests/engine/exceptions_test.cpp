// Tests of exceptions during steps and evaluations, calls at the wrong time, and two engines whose steps alternate.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include "engine/run/memory/guard_range.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

// Exceptions ----------------------------------------------------------------------------------------------------------

enum class Where { kForward, kBackward, kBetween };

void train_and_throw(Engine& engine, SmallModel& model, int step, int rank, Where where) {
  auto& units = engine.units();
  const auto data = testing_model::samples(step, 0, rank);
  const auto pass = engine.micro_batch();
  for (int use = 0; use < kUses; ++use) {
    auto live = use < kLayers ? units[use].forward() : engine.forward({&units[kLayers], &units[0]});
    if (where == Where::kForward && use == 1) throw std::runtime_error("a bad sample");
    model.forward(use, data);
  }
  if (where == Where::kBetween) throw std::runtime_error("a bad loss");
  for (int use = kUses - 1; use >= 0; --use) {
    auto live = use < kLayers ? units[use].backward() : engine.backward({&units[kLayers], &units[0]});
    if (where == Where::kBackward && use == 1) throw std::runtime_error("a bad gradient");
    model.backward(use);
  }
}

/// In step 2 one rank, or every rank, throws. All ranks skip the step, and the following steps are unaffected.
TEST(Exceptions, SkipTheStepOnAllRanks) {
  for (const bool all_throw : {false, true}) {
    for (const Where where : {Where::kForward, Where::kBackward, Where::kBetween}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
          if (stage < 3 && gather == GatherMode::kView) continue;
          Settings settings;
          settings.options = {.zero_stage = stage};
          if (stage == 3) settings.options.gather = gather;
          const Outcome reference = train_without_engine(3, settings);
          World::threads(
              3,
              [&](World& world) {
                EngineWithModel setup(world, settings);
                auto& [model, engine] = setup;
                for (int step = 0; step < settings.steps; ++step) {
                  if (step == 2) {
                    const bool throws = all_throw || world.rank() == 1;
                    try {
                      if (throws) train_and_throw(engine, model, step, world.rank(), where);
                      if (!throws) train_micro_batch(engine, model, step, 0, world.rank());
                    } catch (const std::runtime_error&) {
                    }
                    const StepReport report = engine.step();
                    EXPECT_TRUE(report.skipped);
                    EXPECT_EQ(report.abandoned_by, all_throw ? 0 : 1);
                  }
                  train_micro_batch(engine, model, step, 0, world.rank());
                  const StepReport report = engine.step();
                  EXPECT_FALSE(report.skipped);
                  EXPECT_EQ(report.gradient_norm, reference.norms[step]) << "ZeRO stage " << stage;
                }
                EXPECT_EQ(engine.step_count(), settings.steps + 1);
              },
              kHosts);
        }
      }
    }
  }
}

TEST(Exceptions, DuringEvaluationDoNotAffectLaterSteps) {
  for (const int stage : {0, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .gather = GatherMode::kCopy};
    if (stage == 0) settings.options.gather = GatherMode::kAuto;
    const Outcome reference = train_without_engine(2, settings);
    World::threads(
        2,
        [&](World& world) {
          EngineWithModel setup(world, settings);
          auto& [model, engine] = setup;
          for (int step = 0; step < settings.steps; ++step) {
            try {
              auto live = engine.units()[0].evaluate();
              throw std::runtime_error("a bad sample");
            } catch (const std::runtime_error&) {
            }
            if (step % 2 == 0) evaluate(engine, model, 1, world.rank());
            train_micro_batch(engine, model, step, 0, world.rank());
            EXPECT_EQ(engine.step().gradient_norm, reference.norms[step]);
          }
        },
        kHosts);
  }
}

TEST(Exceptions, AfterAnUpdateInBackwardAreFatal) {
  World::threads(
      1,
      [](World& world) {
        SmallModel model;
        Engine engine(world, {.update_in_backward = true, .clip = 0});
        declare(engine, model);
        EXPECT_THROW(train_and_throw(engine, model, 0, 0, Where::kBackward), std::runtime_error);
        EXPECT_THROW(engine.step(), FaultError);
      },
      kHosts);
}

/// Rank 1 throws in one of four micro-batches, or before the first. The code that catches the exception calls step().
/// If no micro-batch has started, it calls abandon() before step().
TEST(Exceptions, InAnyMicroBatchSkipTheStep) {
  for (const int at : {-1, 0, 1, 2, 3}) {
    for (const int stage : {0, 2, 3}) {
      for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
        Settings settings;
        settings.options = {.zero_stage = stage, .accumulate = 4, .accumulate_into = into};
        if (stage == 3) settings.options.gather = GatherMode::kCopy;
        const Outcome reference = train_without_engine(2, settings);
        World::threads(
            2,
            [&](World& world) {
              EngineWithModel setup(world, settings);
              auto& [model, engine] = setup;
              for (int step = 0; step < settings.steps; ++step) {
                for (const bool faulty : {step == 1, false}) {
                  try {
                    if (faulty && at < 0 && world.rank() == 1) throw std::runtime_error("no data");
                    for (int m = 0; m < 4; ++m) {
                      if (faulty && m == at && world.rank() == 1)
                        train_and_throw(engine, model, step, 1, Where::kForward);
                      train_micro_batch(engine, model, step, m, world.rank());
                    }
                  } catch (const std::runtime_error&) {
                    if (at < 0) engine.abandon();
                    EXPECT_THROW(engine.micro_batch(), UsageError) << "step() must be called first";
                  }
                  const StepReport report = engine.step();
                  EXPECT_EQ(report.skipped, faulty);
                  if (!faulty) {
                    EXPECT_EQ(report.gradient_norm, reference.norms[step]);
                  }
                  if (step != 1) break;
                }
              }
            },
            kHosts);
      }
    }
  }
}

/// An exception after step() does not affect the finished step, although the Pass object of the step still exists.
TEST(Exceptions, AfterStepDoNotAffectTheFinishedStep) {
  World::threads(
      1,
      [](World& world) {
        SmallModel model;
        Engine engine(world, {});
        declare(engine, model);
        try {
          const auto pass = [&] {
            train_micro_batch(engine, model, 0, 0, 0);
            return Pass(&engine, 0);
          }();
          EXPECT_FALSE(engine.step().skipped);
          throw std::runtime_error("the log is full");
        } catch (const std::runtime_error&) {
        }
        train_micro_batch(engine, model, 1, 0, 0);
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

TEST(Misuse, CallsThrowWhileAScopeIsOpen) {
  for (const int stage : {0, 2, 3}) {
    World::threads(
        1,
        [&](World& world) {
          SmallModel model;
          Engine engine(world, {.zero_stage = stage});
          declare(engine, model);
          {
            const auto live = engine.units()[0].evaluate();
            EXPECT_THROW(engine.micro_batch(), UsageError);
            EXPECT_THROW(engine.set_trainable("layer.0", false), UsageError);
            EXPECT_THROW(engine.state(), UsageError);
            EXPECT_THROW(engine.read("scale.weight"), UsageError);
            EXPECT_THROW(engine.step(), UsageError);
            EXPECT_THROW(engine.adopt({}), UsageError);
          }
          EXPECT_THROW(static_cast<void>(engine.units()[0].evaluate()), UsageError)
              << "the evaluation has not finished";
        },
        kHosts);
  }
}

TEST(Misuse, OptionsThatDifferBetweenRanksThrow) {
  const auto differing = [](const std::function<void(EngineOptions&)>& change, std::string_view sentence) {
    try {
      World::threads(
          2,
          [&](World& world) {
            EngineOptions options;
            if (world.rank() == 1) change(options);
            SmallModel model;
            Engine engine(world, options);
            declare(engine, model);
          },
          kHosts);
      ADD_FAILURE() << "accepted: " << sentence;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string_view(error.what()).find(sentence), std::string_view::npos) << error.what();
    }
  };
  differing([](EngineOptions& o) { o.clip = 0.5; }, "rank 0: rank 0 has \"clip 1\", rank 1 has \"clip 0.5\"");
  differing([](EngineOptions& o) { o.optimizer = AdamW{.beta1 = 0.8f}; },
            "rank 0: rank 0 has \"optimizer.beta1 0.9\", rank 1 has \"optimizer.beta1 0.8\"");
  differing([](EngineOptions& o) { o.optimizer = Lion{}; },
            "rank 0: rank 0 has \"optimizer adamw\", rank 1 has \"optimizer lion\"");
  differing([](EngineOptions& o) { o.seed = 7; }, "rank 0: rank 0 has \"seed 1\", rank 1 has \"seed 7\"");
  differing([](EngineOptions& o) { o.zero_stage = 1; },
            "rank 0: rank 0 has \"zero_stage 3\", rank 1 has \"zero_stage 1\"");
  differing([](EngineOptions& o) { o.gather = GatherMode::kCopy; },
            "rank 0: rank 0 has \"gather auto\", rank 1 has \"gather copy\"");
  World::threads(
      2,
      [&](World& world) {
        SmallModel model;
        Engine engine(world, {});
        EXPECT_THROW(engine.compute_on(world.device().make_stream(Lane::kGather)), UsageError);
        declare(engine, model);
        State state = engine.state();
        state.step = world.rank();
        EXPECT_THROW(engine.adopt(state), UsageError);
        state.scalars["update_count"] = 0.5;
        EXPECT_THROW(engine.adopt(state), UsageError) << "not an integer";
        const auto refused = [&](const char* name, const Scalar& value) {
          State forged = engine.state();
          forged.scalars[name] = value;
          EXPECT_THROW(engine.adopt(forged), UsageError) << name;
        };
        refused("update_count", int64_t{-5});
        refused("update_count", engine.state().step + 1);
        refused("loss_scale", -1.0);
        refused("loss_scale", std::nan(""));
        refused("loss_scale_chances", int64_t{1} << 40);
        refused("loss_scale_good_steps", int64_t{-1});
      },
      kHosts);
}

TEST(GuardRange, ThrowsIfTheAddressSpaceIsTooSmall) {
  EXPECT_THROW(GuardRange({{"w", int64_t{1} << 50}}), UnavailableError);
}

/// Runs the steps of two engines on the same ranks in an irregular order.
TEST(Engines, StepsOfTwoEnginesMayAlternate) {
  for (const int stage : {0, 1, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage};
    if (stage == 3) settings.options.gather = GatherMode::kCopy;
    const Outcome reference = train_without_engine(3, settings);
    for (uint64_t seed = 0; seed < 12; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      World::threads(3,
                     [&](World& world) {
                       SmallModel models[2];
                       auto first = std::make_unique<Engine>(world, settings.options);
                       Engine second(world, settings.options);
                       Engine* engines[2] = {first.get(), &second};
                       for (int e = 0; e < 2; ++e) {
                         declare(*engines[e], models[e]);
                         engines[e]->set_learning_rate(settings.learning_rate);
                       }
                       int step[2] = {0, 0};
                       for (const int e : {0, 0, 1, 0, 1, 1, 0, 1}) {
                         train_micro_batch(*engines[e], models[e], step[e], 0, world.rank());
                         EXPECT_EQ(engines[e]->step().gradient_norm, reference.norms[step[e]])
                             << "ZeRO stage " << stage;
                         ++step[e];
                         if (e == 0) evaluate(*engines[0], models[0], 1, world.rank());
                       }
                       first.reset();
                       train_micro_batch(second, models[1], 0, 0, world.rank());
                       EXPECT_FALSE(second.step().skipped);
                     },
                     {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
    }
  }
}

TEST(Engines, MicroBatchThrowsDuringTheStepOfAnotherEngine) {
  World::threads(
      1,
      [](World& world) {
        SmallModel a, b;
        Engine first(world, {}), second(world, {});
        declare(first, a);
        declare(second, b);
        first.micro_batch();
        EXPECT_THROW(second.micro_batch(), UsageError);
        auto live = first.units()[0].forward();
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
