// Tests of split parameters together with other options of the engine. Results are compared with those of one rank in
// place of each tensor group, and with those of other ZeRO stages.
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <unistd.h>

#include "kernels/formats/float16.h"
#include "tests/engine/split_blocks.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float value) : bits(float_to_bf16(value)) {}
  operator float() const { return bf16_to_float(bits); }  // NOLINT(google-explicit-constructor): like float
};

struct Fp16 {
  uint16_t bits = 0;
  operator float() const { return fp16_to_float(bits); }  // NOLINT(google-explicit-constructor): like float
};

std::string text(const EngineOptions& options) {
  return fmt::format("{} ranks in a tensor group, {} replicas, {} pipeline stages, ZeRO stage {}, {}", options.tensor,
                     options.replicas, options.pipeline, options.zero_stage, options.precision.describe());
}

EngineOptions options_of(int zero_stage) {
  return {.zero_stage = zero_stage,
          .accumulate = 2,
          .accumulate_into = AccumulateInto::kShard,
          .gather = GatherMode::kCopy};
}

/// Called before each step.
template <typename Blocks>
using BeforeStep = std::function<void(Blocks&, int step)>;

/// Trains the steps [0, steps) one after another. Returns the results of the first rank of the last pipeline stage.
/// Expects the planned memory on every rank if `before_step` is empty.
template <typename Value = float, typename Gradient = float>
TensorTrained train(int data_ranks, const EngineOptions& options,
                    const typename BasicSplitBlocks<Value, Gradient>::Variant& variant = {}, int steps = 3,
                    const BeforeStep<BasicSplitBlocks<Value, Gradient>>& before_step = {}) {
  TensorTrained trained;
  const int stage_ranks = data_ranks * options.tensor;
  World::threads(
      stage_ranks * options.pipeline,
      [&](World& world) {
        Engine engine(world, options);
        BasicSplitBlocks<Value, Gradient> blocks(engine, world.rank(), options.tensor, variant);
        TensorTrained own;
        for (int step = 0; step < steps; ++step) {
          if (before_step) before_step(blocks, step);
          const TensorTrained of_step = train_split_blocks(engine, blocks, step, step + 1);
          own.losses.insert(own.losses.end(), of_step.losses.begin(), of_step.losses.end());
          own.norms.insert(own.norms.end(), of_step.norms.begin(), of_step.norms.end());
          own.parameters = of_step.parameters;
        }
        if (!before_step) expect_planned_peak(world, engine);
        if (world.rank() == stage_ranks * (options.pipeline - 1)) trained = own;
      },
      kHosts);
  return trained;
}

/// Trains at all ZeRO stages with tensor groups of 3 ranks. Expects one set of bits, which is close to the results
/// without tensor groups.
template <typename Value = float, typename Gradient = float>
void expect_results_of_one_rank(const std::function<void(EngineOptions&)>& change, int data_ranks = 2) {
  EngineOptions options = options_of(2);
  change(options);
  const TensorTrained reference = train<Value, Gradient>(data_ranks, options);
  options.tensor = 3;
  const TensorTrained split = train<Value, Gradient>(data_ranks, options);
  SCOPED_TRACE(text(options));
  expect_close(split, reference);
  for (const int zero_stage : {0, 1, 3}) {
    options.zero_stage = zero_stage;
    EXPECT_TRUE((train<Value, Gradient>(data_ranks, options) == split)) << text(options);
  }
}

TEST(SplitOptions, ParametersMayHave16Bits) {
  for (const MasterForm master : {MasterForm::kSplit, MasterForm::kFp32})
    expect_results_of_one_rank<Bf16>(
        [&](EngineOptions& options) { options.precision = {.compute = DType::kBFloat16, .master = master}; });
  expect_results_of_one_rank<Fp16>([](EngineOptions& options) { options.precision.compute = DType::kFloat16; });
}

/// In bf16, parts of a gradient are rounded before they are added, which changes the norm.
TEST(SplitOptions, GradientsMayHave16Bits) {
  EngineOptions options = options_of(2);
  options.precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16};
  TensorTrained reference = train<Bf16, Bf16>(2, options);
  options.tensor = 3;
  const TensorTrained split = train<Bf16, Bf16>(2, options);
  for (std::size_t i = 0; i < split.norms.size(); ++i)
    EXPECT_NEAR(split.norms[i], reference.norms[i], 0x1p-7 * reference.norms[i]);
  reference.norms = split.norms;
  expect_close(split, reference);
  for (const int zero_stage : {0, 1, 3}) {
    options.zero_stage = zero_stage;
    EXPECT_TRUE((train<Bf16, Bf16>(2, options) == split)) << text(options);
  }
}

TEST(SplitOptions, RanksMaySendGradientsIn16Bits) {
  expect_results_of_one_rank([](EngineOptions& options) { options.precision.reduce = DType::kBFloat16; });
}

/// With the first loss scale, squares of gradients overflow, so that all ranks skip steps and halve it.
TEST(SplitOptions, LossScalesOverflowOnAllRanksOrNone) {
  const auto train_scaled = [](int tensor, int zero_stage) {
    std::vector<double> scales;
    std::vector<bool> skipped;
    EngineOptions options = options_of(zero_stage);
    options.precision.compute = DType::kFloat16;
    options.tensor = tensor;
    options.tell_skipped = false;
    options.loss_scaling = {.initial_scale_power = 68, .hysteresis = 1};
    World::threads(
        2 * tensor,
        [&](World& world) {
          Engine engine(world, options);
          BasicSplitBlocks<Fp16> blocks(engine, world.rank(), tensor, {});
          for (int step = 0; step < 10; ++step) {
            while (const auto work = engine.next()) blocks.run(*work, step);
            const StepReport report = engine.step();
            if (world.rank() == 0) scales.push_back(report.loss_scale), skipped.push_back(report.skipped);
          }
          engine.check_copies();
        },
        kHosts);
    EXPECT_TRUE(skipped.front());
    EXPECT_FALSE(skipped.back());
    return std::pair(scales, skipped);
  };
  const auto reference = train_scaled(1, 2);
  for (const int zero_stage : {0, 2, 3}) EXPECT_EQ(train_scaled(3, zero_stage), reference);
}

TEST(SplitOptions, UnitsMayBeUpdatedInBackward) {
  expect_results_of_one_rank([](EngineOptions& options) {
    options.update_in_backward = true;
    options.clip = 0;
  });
}

/// Moments are rounded with other random numbers than those of one rank.
TEST(SplitOptions, MomentsMayBeRounded) {
  expect_results_of_one_rank([](EngineOptions& options) { options.moments = DType::kBFloat16; });
}

/// One rank of a tensor group abandons the second step. The other ranks run its uses with its collectives.
TEST(SplitOptions, AnAbandonedStepChangesNothing) {
  for (const int zero_stage : {0, 2, 3}) {
    EngineOptions options = options_of(zero_stage);
    options.tensor = 3;
    options.tell_skipped = false;
    const auto train_two_steps = [&](int abandoning_rank) {
      TensorTrained trained;
      World::threads(
          6,
          [&](World& world) {
            Engine engine(world, options);
            SplitBlocks blocks(engine, world.rank(), 3);
            (void)train_split_blocks(engine, blocks, 0, 1);
            if (abandoning_rank >= 0) {
              if (world.rank() == abandoning_rank) engine.abandon();
              while (world.rank() != abandoning_rank) {
                const auto work = engine.next();
                if (!work) break;
                blocks.run(*work, 1);
              }
              const StepReport report = engine.step();
              EXPECT_TRUE(report.skipped);
              EXPECT_EQ(report.abandoned_by, abandoning_rank);
            }
            const TensorTrained own = train_split_blocks(engine, blocks, 2, 3);
            if (world.rank() == 0) trained = own;
          },
          kHosts);
      return trained;
    };
    const TensorTrained without = train_two_steps(-1);
    for (const int rank : {0, 1, 5}) EXPECT_TRUE(train_two_steps(rank) == without) << zero_stage << ", rank " << rank;
  }
}

/// Parameters of all kinds are frozen and unfrozen between steps.
TEST(SplitOptions, ParametersMayBeFrozen) {
  const auto train_frozen = [](int tensor, int zero_stage) {
    EngineOptions options = options_of(zero_stage);
    options.tensor = tensor;
    return train(2, options, {}, 4, BeforeStep<BasicSplitBlocks<float>>([](auto& blocks, int step) {
                   if (step == 1) {
                     for (const char* name : {"h.2.", "h.3.a", "h.4.s", "h.4.d", "h.5.b", "h.6.d"})
                       blocks.set_trainable(name, false);
                   }
                   if (step == 3) blocks.set_trainable("h.", true);
                 }));
  };
  const TensorTrained reference = train_frozen(1, 2), split = train_frozen(3, 2);
  expect_close(split, reference);
  EXPECT_FALSE(split == [] {
    EngineOptions options = options_of(2);
    options.tensor = 3;
    return train(2, options, {}, 4);
  }()) << "freezing had no effect";
  for (const int zero_stage : {0, 1, 3}) EXPECT_TRUE(train_frozen(3, zero_stage) == split) << zero_stage;
}

/// The first block is used again after the last one, on the last pipeline stage.
TEST(SplitOptions, ABlockMayBeTied) {
  for (const int zero_stage : {0, 2, 3}) {
    EngineOptions options = options_of(zero_stage);
    const TensorTrained reference = train(2, options, {.tied = true});
    options.tensor = 2;
    const TensorTrained split = train(2, options, {.tied = true});
    expect_close(split, reference);
    options.pipeline = 2;
    options.pipeline_cut = {5, 4};
    EXPECT_TRUE(train(2, options, {.tied = true}) == split) << text(options);
  }
}

TEST(SplitOptions, StateAndParametersMayBeOnDisk) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("aliquot-split-{}", getpid());
  std::filesystem::create_directories(folder);
  for (const int zero_stage : {1, 3}) {
    EngineOptions options = options_of(zero_stage);
    options.tensor = 3;
    const TensorTrained reference = train(2, options);
    options.offload_state = Offload::kDisk;
    options.offload_state_to = options.offload_parameters_to = folder;
    if (zero_stage == 3) options.offload_parameters = Offload::kDisk;
    EXPECT_TRUE(train(2, options) == reference) << text(options);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

/// Reproducible steps add all micro-batches of all data ranks in one tree.
TEST(SplitOptions, ReproducibleStepsDoNotDependOnReplicas) {
  EngineOptions options = options_of(2);
  options.reproducible = true;
  const TensorTrained reference = train(4, options);
  options.tensor = 2;
  const TensorTrained split = train(4, options);
  expect_close(split, reference);
  for (const int replicas : {2, 4}) {
    for (const int zero_stage : {0, 2, 3}) {
      options.replicas = replicas;
      options.zero_stage = zero_stage;
      EXPECT_TRUE(train(4, options) == split) << text(options);
    }
  }
}

/// In tensor groups of 8 ranks, two ranks have no rows, and some ranks have no samples.
TEST(SplitOptions, SlicesMayHaveNoElements) {
  const TensorTrained reference = train(1, options_of(2));
  for (const bool assigns : {false, true}) {
    for (const bool check : {false, true}) {
      for (const int zero_stage : {0, 2, 3}) {
        EngineOptions options = options_of(zero_stage);
        options.tensor = 8;
        options.check = check;
        SCOPED_TRACE(text(options));
        expect_close(train(1, options, {.assigns = assigns}), reference);
      }
    }
  }
}

/// Slices have other quantized blocks than full parameters, so results differ by the error of quantization. Two nodes
/// of one tensor group each.
TEST(SplitOptions, CommunicationMayBeQuantized) {
  const test::ScopedRanksPerNode emulated_nodes(2);
  EngineOptions options = options_of(3);
  options.tensor = 2;
  const TensorTrained reference = train(2, options);
  for (const bool weights : {false, true}) {
    for (const bool gradients : {false, true}) {
      options.quantize_weights = weights;
      options.quantize_gradients = gradients;
      const TensorTrained quantized = train(2, options);
      EXPECT_EQ(quantized == reference, !weights && !gradients);
      for (std::size_t i = 0; i < reference.losses.size(); ++i)
        EXPECT_NEAR(quantized.losses[i], reference.losses[i], 0.02 * reference.losses[i]);
      for (std::size_t i = 0; i < reference.norms.size(); ++i)
        EXPECT_NEAR(quantized.norms[i], reference.norms[i], 0.02 * reference.norms[i]);
    }
  }
}

/// Trains one unit with two matrices in separate flat buffers, and a split parameter. The gradient of each element
/// depends on its value. Of h.partial, each rank of a tensor group computes a part.
std::vector<float> train_matrices(int data_ranks, const EngineOptions& options) {
  std::vector<float> trained;
  World::threads(
      data_ranks * options.tensor,
      [&](World& world) {
        const int own = world.rank() % options.tensor, data_rank = world.rank() / options.tensor;
        std::array<float*, 3> value{}, gradient{};
        std::array<int64_t, 3> counts{8 * 6, 12 * 5, Slice({10}, Split::rows(), own, options.tensor).element_count()};
        Engine engine(world, options);
        engine.add_unit("h")
            .add("full", {8, 6}, &value[0], &gradient[0])
            .add("partial", {12, 5}, &value[1], &gradient[1], {.partial_gradient = true})
            .add("split", {10}, &value[2], &gradient[2], {.split = Split::rows()});
        engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
        });
        for (int step = 0; step < 3; ++step) {
          while (const auto work = engine.next()) {
            for (std::size_t t = 0; t < 3 && work->kind == UseKind::kBackward; ++t) {
              for (int64_t i = 0; i < counts[t]; ++i) {
                if (t == 1 && i % options.tensor != own) continue;
                gradient[t][i] += value[t][i] + 0.1f * static_cast<float>(data_rank + work->micro_batch);
              }
            }
          }
          EXPECT_FALSE(engine.step().skipped);
        }
        engine.check_copies();
        std::vector<float> all;
        for (const char* name : {"h.full", "h.partial", "h.split"}) {
          const auto read = engine.read(name);
          all.insert(all.end(), read.begin(), read.end());
        }
        EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
        if (world.rank() == 0) trained = all;
      },
      kHosts);
  return trained;
}

TEST(SplitOptions, MuonUpdatesTwoFlatBuffersOfMatricesInOneUnit) {
  for (const int data_ranks : {1, 2}) {
    EngineOptions options = options_of(2);
    options.optimizer = Muon{};
    const std::vector<float> reference = train_matrices(data_ranks, options);
    options.tensor = 3;
    const std::vector<float> split = train_matrices(data_ranks, options);
    ASSERT_EQ(split.size(), reference.size());
    for (std::size_t i = 0; i < split.size(); ++i) EXPECT_NEAR(split[i], reference[i], 1e-4);
    for (const int zero_stage : {0, 1, 3}) {
      options.zero_stage = zero_stage;
      EXPECT_EQ(train_matrices(data_ranks, options), split) << text(options);
    }
  }
}

}  // namespace
}  // namespace aliquot
