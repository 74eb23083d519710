// Tests of collectives that model code runs in tensor groups.
#include <fmt/format.h>

#include "engine/options/enum_names.h"
#include "engine/proof/validate.h"
#include "tests/engine/tensor_blocks.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/scoped_ranks_per_node.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Trains on thread ranks. Returns the results of the first rank of the last pipeline stage.
TensorTrained train(int data_ranks, const EngineOptions& options, const WorldOptions& world_options = kHosts) {
  TensorTrained trained;
  const int stage_ranks = data_ranks * options.tensor;
  World::threads(
      stage_ranks * options.pipeline,
      [&](World& world) {
        const TensorTrained own = train_tensor_blocks(world, options);
        if (world.rank() == stage_ranks * (options.pipeline - 1)) trained = own;
      },
      world_options);
  return trained;
}

std::string text(const EngineOptions& options) {
  return fmt::format("{} ranks in a tensor group, {} replicas, {} pipeline stages, {}, ZeRO stage {}, recompute {}",
                     options.tensor, options.replicas, options.pipeline,
                     enum_name(kPipelineScheduleWords, options.pipeline_schedule), options.zero_stage,
                     options.recompute);
}

/// The sums of tensor groups have another order than those of one rank, so results differ by rounding.
TEST(UseCollectives, GiveTheResultsOfOneRank) {
  for (const int data_ranks : {1, 2}) {
    const EngineOptions alone{
        .zero_stage = 2, .accumulate = 2, .accumulate_into = AccumulateInto::kShard, .gather = GatherMode::kCopy};
    const TensorTrained reference = train(data_ranks, alone);
    for (const int tensor : {2, 3, 4}) {
      EngineOptions options = alone;
      options.tensor = tensor;
      const TensorTrained split = train(data_ranks, options);
      SCOPED_TRACE(text(options));
      expect_close(split, reference);
      for (const int zero_stage : {0, 1, 2, 3}) {
        for (const int recompute : {0, 3}) {
          options.zero_stage = zero_stage;
          options.recompute = recompute;
          EXPECT_TRUE(train(data_ranks, options) == split) << text(options);
        }
      }
    }
  }
}

TEST(UseCollectives, GiveTheSameBitsWithPipelinesAndReplicas) {
  EngineOptions options{.zero_stage = 2, .accumulate = 4, .tensor = 2, .accumulate_into = AccumulateInto::kShard};
  const TensorTrained reference = train(2, options);
  using enum PipelineSchedule;
  for (const auto schedule : {kGpipe, k1F1B, kInterleaved, kZeroBubble}) {
    for (const int zero_stage : {0, 3}) {
      options.zero_stage = zero_stage;
      options.pipeline = 2;
      options.pipeline_schedule = schedule;
      options.pipeline_cut = schedule == kInterleaved ? std::vector{1, 1, 1, 1} : std::vector{2, 2};
      EXPECT_TRUE(train(2, options) == reference) << text(options);
    }
  }
  options.pipeline = 1;
  options.pipeline_cut = {};
  options.pipeline_schedule = k1F1B;
  options.replicas = 2;
  for (const int zero_stage : {0, 1, 2, 3}) {
    options.zero_stage = zero_stage;
    expect_close(train(2, options), reference);
  }
}

TEST(UseCollectives, AdversarialSchedulingDoesNotChangeResults) {
  EngineOptions options{.zero_stage = 3, .accumulate = 2, .tensor = 2, .recompute = 2, .gather = GatherMode::kCopy};
  const TensorTrained reference = train(2, options);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    const auto world = WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
    EXPECT_TRUE(train(2, options, world) == reference) << "seed " << seed;
  }
}

TEST(UseCollectives, GiveTheSameBitsInTensorGroupsAcrossNodes) {
  EngineOptions options{.zero_stage = 2, .tensor = 2};
  const TensorTrained reference = train(2, options);
  const test::ScopedRanksPerNode one(1);
  for (const int zero_stage : {0, 2, 3}) {
    options.zero_stage = zero_stage;
    EXPECT_TRUE(train(2, options) == reference) << text(options);
  }
}

TEST(UseCollectives, WorkInTheCheckingMode) {
  EngineOptions options{.zero_stage = 2, .accumulate = 2, .tensor = 2, .recompute = 2};
  const TensorTrained reference = train(2, options);
  options.check = true;
  EXPECT_TRUE(train(2, options) == reference);
}

TEST(UseCollectives, OfTheWrongNameAreRefusedBeforeDataMoves) {
  for (const int tensor : {1, 2}) {
    World::threads(
        2,
        [&](World& world) {
          Engine engine(world, {.tensor = tensor});
          TensorBlocks blocks(engine, world.rank(), tensor);
          std::string wrong;
          {
            const auto work = engine.next();
            wrong = test::usage_error_message([&] { work->run("output"); });
            work->run("middle");
            EXPECT_EQ(
                test::usage_error_message([&] { work->run("middle"); }),
                "the collective \"middle\" was run in forward of h.0, but the declared order expects \"partial\"");
            work->run("partial");
            work->run("output");
            EXPECT_EQ(test::usage_error_message([&] { work->run("output"); }),
                      "the collective \"output\" was run in forward of h.0, but the declared order expects no further "
                      "collective");
          }
          EXPECT_EQ(wrong,
                    "the collective \"output\" was run in forward of h.0, but the declared order expects \"middle\"");
          engine.abandon();
          EXPECT_TRUE(engine.step().skipped);
        },
        kHosts);
  }
}

/// The engine runs omitted collectives, so no rank waits forever. The step is skipped, and training continues.
TEST(UseCollectives, ThatAreOmittedAbandonTheStep) {
  World::threads(
      4,
      [](World& world) {
        Engine engine(world, {.accumulate = 2, .tensor = 2});
        TensorBlocks blocks(engine, world.rank(), 2);
        if (world.rank() == 2) {
          {
            const auto work = engine.next();
            work->run("middle");
          }
          EXPECT_EQ(test::usage_error_message([&] { (void)engine.next(); }),
                    "the scope of h.0 was closed, but its collective \"partial\" was not run");
        } else {
          while (const auto work = engine.next()) blocks.run(*work, 0.5);
        }
        const StepReport report = engine.step();
        EXPECT_TRUE(report.skipped);
        EXPECT_EQ(report.abandoned_by, 2);
        while (const auto work = engine.next()) blocks.run(*work, 0.5);
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

/// A rank that throws before, between or after the collectives of a use takes part in the rest of the step.
TEST(UseCollectives, CompleteIfARankAbandonsTheStep) {
  for (const int throws_at : {0, 1, 2, 3, 7}) {  // rank 1 runs forwards with three collectives each, then backwards
    World::threads(
        4,
        [&](World& world) {
          Engine engine(world, {.tensor = 2, .pipeline = 2, .pipeline_cut = {2, 2}});
          TensorBlocks blocks(engine, world.rank(), 2);
          if (world.rank() == 1) blocks.throw_at(throws_at);
          try {
            while (const auto work = engine.next()) blocks.run(*work, 0.5);
          } catch (const std::runtime_error&) {
          }
          EXPECT_TRUE(engine.step().skipped) << throws_at;
          while (const auto work = engine.next()) blocks.run(*work, 0.5);
          EXPECT_FALSE(engine.step().skipped) << throws_at;
        },
        kHosts);
  }
}

/// The first rank leaves an evaluation between two collectives, or omits one. The evaluation ends on all ranks.
TEST(UseCollectives, CompleteIfARankAbandonsAnEvaluation) {
  for (const bool omits : {false, true}) {
    World::threads(
        2,
        [&](World& world) {
          Engine engine(world, {.tensor = 2});
          TensorBlocks blocks(engine, world.rank(), 2);
          if (world.rank() == 1) {
            while (const auto work = engine.next_evaluation()) blocks.run(*work, 0.5);
          } else if (omits) {
            {
              const auto work = engine.next_evaluation();
              work->run("middle");
            }
            EXPECT_EQ(test::usage_error_message([&] { (void)engine.next(); }),
                      "the scope of h.0 was closed, but its collective \"partial\" was not run");
          } else {
            blocks.throw_at(1);
            EXPECT_THROW(
                {
                  const auto work = engine.next_evaluation();
                  blocks.run(*work, 0.5);
                },
                std::runtime_error);
          }
          while (const auto work = engine.next()) blocks.run(*work, 0.5);
          EXPECT_FALSE(engine.step().skipped);
        },
        kHosts);
  }
}

TEST(UseCollectives, AreNotSkippedByOneRank) {
  for (const int recompute : {0, 3}) {
    World::threads(
        2,
        [&](World& world) {
          Engine engine(world, {.tensor = 2, .recompute = recompute});
          TensorBlocks blocks(engine, world.rank(), 2);
          engine.micro_batch();
          EXPECT_EQ(
              test::usage_error_message([&] { engine.units()[0].skip(); }),
              "forward of h.0 was skipped, but the other ranks of the tensor group need its collectives: open the "
              "use and run them");
          for (int use = 0; use < TensorBlocks::kBlocks; ++use) blocks.run(*engine.next(), 0.5);
          EXPECT_EQ(test::usage_error_message([&] { engine.units()[3].skip(); }),
                    "backward of h.3 was skipped, but the other ranks of the tensor group need its collectives: open "
                    "the use and run them");
          while (const auto work = engine.next()) blocks.run(*work, 0.5);
          EXPECT_FALSE(engine.step().skipped);
        },
        kHosts);
  }
}

/// The refused call changes nothing, so the evaluation continues.
TEST(UseCollectives, OfAnOpenScopeAreNotRepeatedByAnotherEvaluation) {
  World::threads(
      2,
      [&](World& world) {
        Engine engine(world, {.tensor = 2});
        TensorBlocks blocks(engine, world.rank(), 2);
        double loss = 0;
        for (const bool opens_twice : {false, true}) {
          while (const auto work = engine.next_evaluation()) {
            if (work->use > 0 || !opens_twice) {
              blocks.run(*work, 0.5);
              continue;
            }
            work->run("middle");
            EXPECT_EQ(
                test::usage_error_message([&] { (void)engine.units()[1].evaluate(); }),
                "the scope of unit h.0 is still open: close it before you open another, or open both units with one "
                "call");
            work->run("partial");
            work->run("output");
          }
          engine.compute_stream().synchronize();
          if (!opens_twice) loss = blocks.loss();
        }
        EXPECT_TRUE(std::isfinite(loss));
        while (const auto work = engine.next()) blocks.run(*work, 0.5);
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

TEST(UseCollectives, InvalidDeclarationsAreRefused) {
  const auto messages = [](const std::vector<UseCollective>& all) {
    std::string found;
    World::threads(
        2,
        [&](World& world) {
          float *value = nullptr, *gradient = nullptr;
          Engine engine(world, {.tensor = 2});
          engine.add_unit("h").add("w", {8}, &value, &gradient);
          engine.declare_activations(
              {.uses = {{.output_bytes = 96, .scratch_bytes = 32, .collectives = all}}, .backward_bytes = 0});
          const std::string own = test::usage_error_message([&] { (void)engine.plan(); });
          if (world.rank() == 0) found = own;
        },
        kHosts);
    return found;
  };
  const auto message = [&](const UseCollective& what) { return messages({what}); };
  EXPECT_EQ(message({.name = "", .rows = 3, .row_elements = 4}),
            "the collective \"\" of use 0: UseCollective::name is empty: expected a name");
  EXPECT_EQ(
      message({.name = "x", .rows = 0, .row_elements = 4}),
      "the collective \"x\" of use 0: UseCollective::rows is 0 and UseCollective::row_elements is 4: expected 1 or "
      "more, and at most 2^40 elements");
  EXPECT_EQ(
      message({.name = "x", .rows = 7, .row_elements = 4}),
      "the collective \"x\" of use 0: its data needs 128 bytes at offset 0 in a tensor group of 2 ranks, but output "
      "has 96 bytes");
  EXPECT_EQ(message({.name = "x", .offset_bytes = 4, .rows = 1, .row_elements = 4}),
            "the collective \"x\" of use 0: UseCollective::offset_bytes is 4: expected a multiple of 16");
  EXPECT_EQ(message({.name = "x", .rows = 1, .row_elements = 4, .dtype = DType::kUInt8}),
            "the collective \"x\" of use 0: UseCollective::dtype is uint8: expected fp32, bf16 or fp16 for a sum");
  EXPECT_EQ(message({.name = "x", .part = UsePart::kBackward, .rows = 1, .row_elements = 4}),
            "the collective \"x\" of use 0: UseCollective::buffer is output: expected output, kept or scratch in a "
            "forward, backward or scratch in a backward, and scratch in a backward of weights");
  EXPECT_EQ(message({.name = "x", .rows = 3, .row_elements = 4}), "no error was thrown");
  EXPECT_EQ(message({.name = "x", .kind = static_cast<CollectiveKind>(7), .rows = 3, .row_elements = 4}),
            "the collective \"x\" of use 0: UseCollective::kind, part or buffer is not a value of its enumeration");
  const UseCollective forward{.name = "x", .rows = 1, .row_elements = 4};
  UseCollective weights = forward, back = forward;
  weights.part = UsePart::kBackwardWeights, back.part = UsePart::kBackward;
  weights.buffer = back.buffer = UseBuffer::kScratch;
  weights.name = "w";
  EXPECT_EQ(messages({forward, forward}),
            "the collective \"x\" of use 0: another collective of the same part has this "
            "name: expected different names");
  EXPECT_EQ(messages({weights, back}),
            "the collective \"x\" of use 0: it is declared after \"w\", whose "
            "UseCollective::part is kBackwardWeights: declare it before");
  EXPECT_EQ(messages({forward, back, weights}), "no error was thrown");
}

}  // namespace
}  // namespace aliquot
