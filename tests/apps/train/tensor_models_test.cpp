// Trains GPT-2 and Llama in tensor groups, and compares the results with those of one rank.
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "apps/data/loader.h"
#include "apps/models/make_model.h"
#include "apps/models/parameters.h"
#include "apps/train/wrap.h"
#include "engine/engine.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 3;

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> parameters;
};

struct Case {
  ModelShape shape;
  int tensor = 1;
  bool sequence_parallel = true;
  EngineOptions engine = {};
  bool keep_logits = true;
  int data_ranks = 1;
  int64_t batch = 2, sequence = 15;
};

std::string text_of(const Case& c) {
  return fmt::format("tensor {}, sequence parallel {}, pipeline {}, ZeRO stage {}, recompute {}", c.tensor,
                     c.sequence_parallel, c.engine.pipeline, c.engine.zero_stage, c.engine.recompute);
}

ModelShape gpt2() {
  return {.family = ModelFamily::kGpt2,
          .layers = 2,
          .width = 40,
          .heads = 5,
          .kv_heads = 5,
          .hidden = 50,
          .context = 16,
          .vocabulary = 61};
}

ModelShape llama() {
  return {.family = ModelFamily::kLlama,
          .layers = 2,
          .width = 48,
          .heads = 8,
          .kv_heads = 4,
          .hidden = 50,
          .context = 16,
          .vocabulary = 61,
          .tied = false};
}

/// A Llama with biases, norms of queries and keys, a window, and two heads of keys and values.
ModelShape varied_llama() {
  ModelShape shape = llama();
  shape.kv_heads = 2;
  shape.own_head_width = 10;
  shape.qkv_bias = shape.output_bias = shape.qk_norm = true;
  shape.window = 6;
  shape.window_layers = {false, true};
  shape.tied = true;
  return shape;
}

/// The same shape with adapters on all linear layers.
ModelShape with_adapters(ModelShape shape) {
  shape.lora = {.rank = 3, .alpha = 6};
  for (const ProjectionNames& names : projections_of(shape.family)) shape.lora.add(names.projection);
  return shape;
}

ModelOptions model_options(const Case& c, int rank) {
  const bool adds = c.engine.accumulate > 1 && c.engine.zero_stage < 2;
  return {.batch = c.batch,
          .sequence = c.sequence,
          .gradients = adds ? GradientMode::kAdd : GradientMode::kAssign,
          .keep_logits = c.keep_logits,
          .compute = c.engine.precision.compute,
          .gradient_type = c.engine.precision.gradients,
          .tensor = {c.tensor, rank % c.tensor, c.sequence_parallel}};
}

/// Two micro-batches for each rank with other data, and an evaluation of the first after each step.
void train_rank(World& world, const Case& c, const TokenSource& source, Outcome& outcome) {
  const auto stream = world.device().make_stream(Lane::kCompute);
  const auto backend = make_host_backend(as_host_stream(*stream).pool());
  const auto model = make_model(c.shape, model_options(c, world.rank()), *backend);
  EngineOptions options = c.engine;
  options.tensor = c.tensor;
  options.optimizer = AdamW{.lr = 1e-2f};
  options.clip = 1;
  Engine engine(world, options);
  wrap(engine, *model);
  EXPECT_EQ(engine.plan().model.units.size(), parameters_of(c.shape).units.size());
  engine.materialize(initial_values(*model, 1));
  const int data_rank = world.rank() / c.tensor % c.data_ranks;
  Loader loader(source, {c.sequence, c.batch, c.shape.vocabulary, true, 1, data_rank, c.data_ranks});
  const auto batch_of = [&](int step, int micro) {
    loader.load(step * c.batch * c.data_ranks * options.accumulate, micro);
    return TokenBatch{loader.tokens(), loader.targets()};
  };
  for (int step = 0; step < kSteps; ++step) {
    model->set_loss_factor(static_cast<float>(engine.loss_scale() / static_cast<double>(c.batch * c.sequence)));
    std::vector<double> losses = run_passes(engine, *model, [&](int micro, int) { return batch_of(step, micro); });
    const StepReport report = engine.step();
    model->set_batch(batch_of(0, 0));
    run_evaluation(engine, *model);
    losses.push_back(engine.plan().stage.is_last() ? model->loss_sum() : 0);
    engine.sum_losses(losses);
    if (world.rank() != 0) continue;
    outcome.losses.insert(outcome.losses.end(), losses.begin(), losses.end());
    outcome.norms.push_back(report.gradient_norm);
  }
  EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak) << text_of(c);
  engine.check_copies();
  for (const ModelUnit& unit : model->units()) {
    for (const ModelTensor& tensor : unit.tensors) {
      const std::string name = unit.name + "." + tensor.name;
      auto values = engine.read(name);
      if (world.rank() == 0) outcome.parameters[name] = std::move(values);
    }
  }
}

Outcome train(const Case& c) {
  Outcome outcome;
  const auto source = make_synthetic_language(c.shape.vocabulary);
  World::threads(c.tensor * c.data_ranks * c.engine.pipeline,
                 [&](World& world) { train_rank(world, c, *source, outcome); },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1, .timeout_seconds = 60});
  return outcome;
}

/// AdamW amplifies differences of gradients that are almost zero, so single parameters differ more than losses.
void expect_close(const Outcome& got, const Outcome& expected, const std::string& what, double within = 1e-5) {
  ASSERT_EQ(got.losses.size(), expected.losses.size()) << what;
  for (size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], expected.losses[i], within * expected.losses[i]) << what << ", loss " << i;
  for (size_t i = 0; i < got.norms.size(); ++i)
    EXPECT_NEAR(got.norms[i], expected.norms[i], 10 * within * expected.norms[i]) << what << ", norm " << i;
  for (const auto& [name, values] : expected.parameters) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(got.parameters.at(name)[i] - values[i], 2);
      size += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 100 * within * std::sqrt(size)) << what << ", " << name;
  }
}

EngineOptions two_micro_batches(int zero_stage = 3) { return {.zero_stage = zero_stage, .accumulate = 2}; }

constexpr std::array kFamilies = {"Gpt2", "Llama", "VariedLlama", "AdaptedGpt2", "AdaptedLlama", "AdaptedVariedLlama"};

class TensorModels : public testing::TestWithParam<ModelShape> {};

INSTANTIATE_TEST_SUITE_P(Families, TensorModels,
                         testing::Values(gpt2(), llama(), varied_llama(), with_adapters(gpt2()), with_adapters(llama()),
                                         with_adapters(varied_llama())),
                         [](const auto& shape) { return kFamilies[shape.index]; });

TEST_P(TensorModels, AgreeWithOneRank) {
  const Outcome one = train({.shape = GetParam(), .engine = two_micro_batches()});
  for (const int tensor : {2, 3, 4}) {
    if (GetParam().kv_heads == 2 && tensor == 3) continue;  // refused
    for (const bool sequence_parallel : {false, true}) {
      const Case c{GetParam(), tensor, sequence_parallel, two_micro_batches()};
      expect_close(train(c), one, text_of(c));
    }
  }
}

TEST_P(TensorModels, AgreeAtEveryZeroStage) {
  const Outcome one = train({.shape = GetParam(), .engine = two_micro_batches(), .data_ranks = 2});
  for (const int zero_stage : {0, 1, 2}) {
    const Case c{GetParam(), 2, zero_stage == 1, two_micro_batches(zero_stage), true, 2};
    expect_close(train(c), one, text_of(c));
  }
}

TEST_P(TensorModels, RecomputeAndRepeatedLogitsChangeNoBits) {
  for (const bool sequence_parallel : {false, true}) {
    Case c{GetParam(), 2, sequence_parallel, two_micro_batches()};
    const Outcome plain = train(c);
    c.engine.recompute = kRecomputeAll;
    c.keep_logits = false;
    const Outcome again = train(c);
    EXPECT_EQ(again.losses, plain.losses) << text_of(c);
    EXPECT_EQ(again.parameters, plain.parameters) << text_of(c);
  }
}

TEST_P(TensorModels, PipelinesAgreeAndASplitBackwardChangesNoBits) {
  for (const bool sequence_parallel : {false, true}) {
    Case c{GetParam(), 2, sequence_parallel, two_micro_batches()};
    c.engine.accumulate = 4;
    const Outcome one_stage = train(c);
    c.engine.pipeline = 2;
    const Outcome plain = train(c);
    expect_close(plain, one_stage, text_of(c));
    c.engine.pipeline_schedule = PipelineSchedule::kZeroBubble;
    const Outcome split = train(c);
    EXPECT_EQ(split.losses, plain.losses) << text_of(c);
    EXPECT_EQ(split.parameters, plain.parameters) << text_of(c);
  }
}

TEST_P(TensorModels, AgreeInSixteenBits) {
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    EngineOptions engine = two_micro_batches();
    engine.precision.compute = compute;
    const Outcome one = train({.shape = GetParam(), .engine = engine});
    for (const bool sequence_parallel : {false, true}) {
      const Case c{GetParam(), 2, sequence_parallel, engine};
      expect_close(train(c), one, text_of(c), compute == DType::kBFloat16 ? 1e-2 : 2e-3);
    }
  }
}

TEST_P(TensorModels, ASplitBackwardChangesNoBitsInSixteenBits) {
  for (const bool sequence_parallel : {false, true}) {
    Case c{GetParam(), 2, sequence_parallel, two_micro_batches()};
    c.engine.accumulate = 4;
    c.engine.pipeline = 2;
    c.engine.precision.compute = DType::kBFloat16;
    const Outcome whole = train(c);
    c.engine.pipeline_schedule = PipelineSchedule::kZeroBubble;
    const Outcome split = train(c);
    EXPECT_EQ(split.losses, whole.losses) << text_of(c);
    EXPECT_EQ(split.parameters, whole.parameters) << text_of(c);
  }
}

/// Partial gradients are rounded before they are added.
TEST_P(TensorModels, AgreeWithRoundedGradients) {
  EngineOptions engine = two_micro_batches();
  engine.precision.gradients = DType::kBFloat16;
  const Outcome one = train({.shape = GetParam(), .engine = engine});
  for (const bool sequence_parallel : {false, true}) {
    const Case c{GetParam(), 2, sequence_parallel, engine};
    expect_close(train(c), one, text_of(c), 2e-3);
  }
}

/// Of 5 rows, the last of 4 ranks has none.
TEST_P(TensorModels, ARankMayHaveNoRows) {
  Case c{.shape = GetParam(), .engine = two_micro_batches(), .batch = 1, .sequence = 5};
  const Outcome one = train(c);
  c.tensor = 4;
  expect_close(train(c), one, text_of(c));
}

/// Two ranks share a head of keys and values. One of them has one of its queries, and the other has two.
TEST(TensorModels, RanksThatShareAHeadMayHaveDifferentNumbersOfQueries) {
  ModelShape shape = llama();
  shape.heads = 6;
  shape.kv_heads = 2;
  const Outcome one = train({.shape = shape, .engine = two_micro_batches()});
  for (const bool sequence_parallel : {false, true}) {
    const Case c{shape, 4, sequence_parallel, two_micro_batches()};
    expect_close(train(c), one, text_of(c));
  }
}

TEST(TensorModels, RefuseGroupsThatDoNotFit) {
  const auto refused = [](const ModelShape& shape, int tensor) {
    try {
      check_tensor_group(shape, {.ranks = tensor});
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused(llama(), 8), "");
  EXPECT_EQ(refused(gpt2(), 6), "--tensor 6 is more than the 5 attention heads of the model: expected at most 5.");
  EXPECT_EQ(refused(varied_llama(), 3),
            "--tensor 3 does not fit the 2 key and value heads of the model: expected at most 2, or a multiple of it.");
}

/// The planner knows the same parameters without a model.
TEST_P(TensorModels, DeclareTheParametersOfThePlanner) {
  ThreadPool pool(1);
  const auto backend = make_host_backend(pool);
  for (const TensorGroup group : {TensorGroup{}, TensorGroup{2, 1, false}, TensorGroup{4, 3, true}}) {
    const auto model = make_model(GetParam(), {.tensor = group}, *backend);
    const ModelSpec planned = parameters_of(GetParam(), group);
    for (size_t u = 0; u < planned.units.size(); ++u) {
      for (size_t p = 0; p < planned.units[u].parameters.size(); ++p) {
        const ParameterSpec& parameter = planned.units[u].parameters[p];
        const ModelTensor& tensor = model->units()[u].tensors[p];
        EXPECT_EQ(parameter.tensor.name, model->units()[u].name + "." + tensor.name);
        EXPECT_EQ(parameter.tensor.shape, tensor.shape);
        EXPECT_EQ(parameter.tensor.trainable, tensor.trainable);
        EXPECT_EQ(parameter.split, tensor.over_tensor.split) << parameter.tensor.name;
        EXPECT_EQ(parameter.partial_gradient, tensor.over_tensor.partial_gradient) << parameter.tensor.name;
      }
    }
  }
}

/// The numbers of elements in the matrices of a use's collectives, by kind.
struct SentElements {
  int64_t sums = 0, gathers = 0, scatter_sums = 0;

  friend bool operator==(const SentElements&, const SentElements&) = default;
};

SentElements sent_elements(const UseActivations& use, UsePart part) {
  SentElements sent;
  for (const UseCollective& collective : use.collectives) {
    if (collective.part != part) continue;
    int64_t& kind = collective.kind == CollectiveKind::kSum      ? sent.sums
                    : collective.kind == CollectiveKind::kGather ? sent.gathers
                                                                 : sent.scatter_sums;
    kind += collective.rows * collective.row_elements;
  }
  return sent;
}

/// A sum is as large as a gather and a scatter-sum. With sequence parallelism, a block saves a T-th of its activations.
/// Without, it saves the residual stream after attention and the statistics of norms for all tokens.
TEST(TensorModels, BlocksSendAndSaveWhatTheFormulasSay) {
  ThreadPool pool(1);
  const auto backend = make_host_backend(pool);
  const ModelShape shape{.family = ModelFamily::kGpt2,
                         .layers = 1,
                         .width = 64,
                         .heads = 4,
                         .kv_heads = 4,
                         .hidden = 256,
                         .context = 64,
                         .vocabulary = 64};
  const int64_t batch = 2, rows = batch * shape.context, stream = rows * shape.width;
  for (const DType compute : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto block_of = [&](const TensorGroup& group) {
      return make_model(shape, {.batch = batch, .compute = compute, .tensor = group}, *backend)->activations().uses[2];
    };
    const int64_t all = block_of({}).kept_bytes, statistics = 4 * rows * 4, middle = stream * 4;
    EXPECT_EQ(all, statistics + middle + rows * shape.heads * 4 +
                       (4 * stream + rows * shape.hidden) * element_bytes(compute));
    for (const int ranks : {2, 4}) {
      const UseActivations plain = block_of({ranks, 0, false}), divided = block_of({ranks, 0, true});
      EXPECT_EQ(sent_elements(plain, UsePart::kForward), (SentElements{.sums = 2 * stream}));
      EXPECT_EQ(sent_elements(plain, UsePart::kBackward), (SentElements{.sums = 2 * stream}));
      EXPECT_EQ(sent_elements(divided, UsePart::kForward),
                (SentElements{.gathers = 2 * stream, .scatter_sums = 2 * stream}));
      // Backward gathers the gradients of the two outputs, and the outputs of the two norms again.
      EXPECT_EQ(sent_elements(divided, UsePart::kBackward),
                (SentElements{.gathers = 4 * stream, .scatter_sums = 2 * stream}));
      // The range of fp16 is too small for sums.
      const DType sums = compute == DType::kFloat16 ? DType::kFloat32 : compute;
      for (const UseCollective& collective : plain.collectives) EXPECT_EQ(collective.dtype, sums);
      EXPECT_EQ(divided.kept_bytes, all / ranks);
      EXPECT_EQ(plain.kept_bytes, (all - statistics - middle) / ranks + statistics + middle);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
