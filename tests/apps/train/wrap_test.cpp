// Trains GPT-2 with the engine. Compares the results with those of a plain training loop, and the ZeRO stages with one
// another.
#include "apps/train/wrap.h"

#include <gtest/gtest.h>

#include "apps/data/loader.h"
#include "apps/models/gpt2.h"
#include "kernels/device/host_stream.h"
#include "tests/support/all_close.h"
#include "tests/support/plain_training.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 4;
constexpr int64_t kBatch = 2, kSequence = 16;

ModelShape small_shape() { return {ModelFamily::kGpt2, 2, 32, 4, 4, 96, 20, 128}; }

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> weights;
};

struct Case {
  int ranks = 1, stage = 0, accumulate = 1;
  AccumulateInto into = AccumulateInto::kAuto;
  DType compute = DType::kFloat32;
  int recompute = 0;
};

/// Returns the shape of the model. With bf16 the vocabulary is so large that the loss needs several tiles.
ModelShape shape_of(const Case& c) {
  ModelShape shape = small_shape();
  if (c.compute == DType::kBFloat16) shape.vocabulary = 5000;
  return shape;
}

Outcome train_sharded(const Case& c) {
  Outcome outcome;
  const auto source = make_synthetic_language(128);
  World::threads(c.ranks,
                 [&](World& world) {
                   const auto stream = world.device().make_stream(Lane::kCompute);
                   const auto loops = make_host_backend(as_host_stream(*stream).pool());
                   const bool accumulates_full =
                       c.into == AccumulateInto::kFull || (c.into == AccumulateInto::kAuto && c.stage < 2);
                   Gpt2 model(
                       shape_of(c),
                       {.batch = kBatch,
                        .sequence = kSequence,
                        .gradients = accumulates_full && c.accumulate > 1 ? GradientMode::kAdd : GradientMode::kAssign,
                        .compute = c.compute},
                       *loops);
                   Engine engine(world, {.zero_stage = c.stage,
                                         .precision = {.compute = c.compute},
                                         .accumulate = c.accumulate,
                                         .accumulate_into = c.into,
                                         .recompute = c.recompute});
                   wrap(engine, model);
                   model.set_loss_factor(1.0f / (kBatch * kSequence));
                   engine.materialize(initial_values(model, 1));
                   Loader loader(*source, {kSequence, kBatch, 128, true, 1, world.rank(), world.rank_count()});
                   for (int step = 0; step < kSteps; ++step) {
                     double loss = 0;
                     for (int micro = 0; micro < c.accumulate; ++micro) {
                       loader.load(step * kBatch * c.ranks * c.accumulate, micro);
                       model.set_batch({loader.tokens(), loader.targets()});
                       run_micro_batch(engine, model);
                       loss += model.loss_sum();
                     }
                     const StepReport report = engine.step();
                     if (world.rank() == 0) {
                       outcome.losses.push_back(loss);
                       outcome.norms.push_back(report.gradient_norm);
                     }
                   }
                   for (const ModelUnit& unit : model.units()) {
                     for (const ModelTensor& tensor : unit.tensors) {
                       const std::string name = unit.name + "." + tensor.name;
                       auto values = engine.read(name);
                       if (world.rank() == 0) outcome.weights[name] = std::move(values);
                     }
                   }
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1});
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(got.losses, expected.losses) << what;
  EXPECT_EQ(got.norms, expected.norms) << what;
  for (const auto& [name, values] : expected.weights)
    EXPECT_TRUE(same_bits(got.weights.at(name), values)) << what << " " << name;
}

TEST(Wrap, EngineMatchesThePlainLoop) {
  const Outcome sharded = train_sharded({});
  PlainOptions options{.shape = small_shape(), .model = {.batch = kBatch, .sequence = kSequence}};
  PlainTraining plain(options);
  const Initialize initialize = initial_values(plain.model(), 1);
  for (auto& [name, tensor] : plain.tensors().tensors()) {
    initialize({.tensor = {.name = name, .shape = tensor.shape}}, 0, tensor.parameter);
  }
  const auto source = make_synthetic_language(128);
  Loader loader(*source, {kSequence, kBatch, 128, true, 1, 0, 1});
  for (int step = 0; step < kSteps; ++step) {
    loader.load(step * kBatch, 0);
    const double loss = plain.pass({loader.tokens(), loader.targets()}) * kBatch * kSequence;
    EXPECT_NEAR(sharded.losses[static_cast<size_t>(step)], loss, 1e-5 * loss) << "step " << step;
    const double norm = plain.update();
    EXPECT_NEAR(sharded.norms[static_cast<size_t>(step)], norm, 1e-4 * norm) << "step " << step;
  }
}

TEST(Wrap, EveryZeroStageGivesTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    for (const AccumulateInto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
      const Outcome expected = train_sharded({ranks, 0, 2, into});
      for (const int stage : {1, 2, 3}) {
        expect_same(train_sharded({ranks, stage, 2, into}), expected,
                    std::to_string(ranks) + " ranks, ZeRO stage " + std::to_string(stage));
      }
    }
  }
}

/// Each ZeRO stage places arrays at other addresses, so a use that reads stale data of another use changes the bits.
TEST(Wrap, EveryZeroStageGivesTheSameBitsInBf16AndWithRecompute) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    const Outcome expected = train_sharded({2, 0, 2, AccumulateInto::kShard, compute});
    for (const int stage : {0, 2, 3}) {
      for (const int recompute : {0, 1, 100}) {
        expect_same(train_sharded({2, stage, 2, AccumulateInto::kShard, compute, recompute}), expected,
                    "ZeRO stage " + std::to_string(stage) + ", recompute " + std::to_string(recompute));
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::test
