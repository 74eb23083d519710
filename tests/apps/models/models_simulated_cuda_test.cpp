// Trains the reference models, sharded over simulated GPUs. Tests the kernels of the layers and of the engine, and the
// order in which they run.
#include <cmath>
#include <gtest/gtest.h>

#include "apps/doctor/doctor.h"
#include "apps/models/cuda/backend_cuda.h"
#include "apps/models/make_model.h"
#include "apps/train/wrap.h"
#include "engine/engine.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/error.h"
#include "tests/support/all_cases.h"
#include "tests/support/random_values.h"
#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_cudnn.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 2;
constexpr int64_t kBatch = 1, kSequence = 20;

struct Setting {
  ModelShape shape;
  int ranks = 1, stage = 3, recompute = 0;
  DType compute = DType::kFloat32;
  int tensor = 1;
  OperandRounding rounding = OperandRounding::kNone;
  int64_t batch = kBatch;
  AttentionKernels attention = AttentionKernels::kOwn;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<float> parameters, logits;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

ModelShape shape_of(ModelFamily family) {
  return {.family = family,
          .layers = 2,
          .width = 32,
          .heads = 4,
          .kv_heads = family == ModelFamily::kLlama ? 2 : 4,
          .hidden = 48,
          .context = kSequence,
          .vocabulary = 61};
}

/// A Llama with all variations of attention.
ModelShape varied_llama() {
  ModelShape shape = shape_of(ModelFamily::kLlama);
  shape.own_head_width = 10;
  shape.qkv_bias = shape.output_bias = shape.qk_norm = true;
  shape.window = 6;
  shape.window_layers = {false, true};
  return shape;
}

/// The same shape with adapters on all linear layers.
ModelShape adapted(ModelShape shape) {
  shape.lora = {.rank = 3, .alpha = 48};
  for (const ProjectionNames& names : projections_of(shape.family)) shape.lora.add(names.projection);
  return shape;
}

std::unique_ptr<Backend> loops_of(Device& device, ThreadPool& pool, const Setting& setting) {
  if (device.kind() == DeviceKind::kHost) return make_host_backend(pool);
  return make_cuda_backend(device, {.rounding = setting.rounding}, setting.attention);
}

double train_a_micro_batch(Engine& engine, Model& model, int64_t batch, int rank, int step) {
  RandomValues random(static_cast<uint64_t>(100 * step + rank + 1));
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < batch * kSequence; ++i) {
    tokens.push_back(static_cast<int32_t>(random.bits() % 61));
    targets.push_back(static_cast<int32_t>((tokens.back() * 7 + 3) % 61));
  }
  model.set_batch({tokens, targets});
  model.set_loss_factor(static_cast<float>(engine.loss_scale() / static_cast<double>(tokens.size())));
  run_micro_batch(engine, model);
  return model.loss_sum() / static_cast<double>(tokens.size());
}

/// Decodes a sequence in passes of several sizes, and returns the logits after each.
std::vector<float> decode(World& world, Engine& engine, Model& model, const Setting& setting,
                          const TensorGroup& group) {
  KeyValueCache cache(world.device(), setting.shape, kSequence, setting.compute, group);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kSequence; ++i) tokens.push_back(static_cast<int32_t>(i * i % 61));
  std::vector<float> logits;
  for (const size_t count : {7, 1, 1, 5, 1}) {
    const std::span<const int32_t> rest(tokens.begin() + cache.length(), tokens.end());
    model.set_decoding({rest.first(count), &cache});
    run_evaluation(engine, model);
    cache.set_length(cache.length() + static_cast<int64_t>(count));
    logits.insert(logits.end(), model.logits().begin(), model.logits().end());
  }
  return logits;
}

void train(World& world, const Setting& setting, Outcome& outcome) {
  ThreadPool pool(1);
  const auto loops = loops_of(world.device(), pool, setting);
  const TensorGroup group{setting.tensor, world.rank() % setting.tensor, setting.stage == 3};
  const auto model = make_model(
      setting.shape,
      {.batch = setting.batch, .compute = setting.compute, .tensor = group, .decode_positions = kSequence}, *loops);
  EngineOptions options{.zero_stage = setting.stage, .optimizer = AdamW{.lr = 1e-2f}, .clip = 1};
  options.precision.compute = setting.compute;
  options.recompute = setting.recompute;
  options.tensor = setting.tensor;
  Engine engine(world, options);
  wrap(engine, *model);
  engine.materialize(initial_values(*model, 5));
  loops->compute_on(engine.compute_stream());
  // In 16 bits, the sums of tensor groups differ enough that training gives other weights, so decoding comes first.
  std::vector<float> logits;
  if (setting.tensor > 1) logits = decode(world, engine, *model, setting, group);
  for (int step = 0; step < kSteps; ++step) {
    const double loss = train_a_micro_batch(engine, *model, setting.batch, world.rank() / setting.tensor, step);
    EXPECT_FALSE(engine.step().skipped);
    if (world.rank() == 0) outcome.losses.push_back(loss);
  }
  if (setting.tensor == 1) logits = decode(world, engine, *model, setting, group);
  if (world.rank() == 0) outcome.logits = logits;
  for (const ModelUnit& unit : model->units()) {
    for (const ModelTensor& tensor : unit.tensors) {
      const std::vector<float> values = engine.read(unit.name + "." + tensor.name);
      if (world.rank() == 0) outcome.parameters.insert(outcome.parameters.end(), values.begin(), values.end());
    }
  }
}

Outcome outcome_of(const Setting& setting, DeviceChoice device) {
  Outcome outcome;
  World::threads(setting.ranks, [&](World& world) { train(world, setting, outcome); },
                 {.device = device, .threads_per_rank = 1, .timeout_seconds = 60});
  return outcome;
}

/// Host and GPU add in different orders. The tolerance for bf16 is larger, because differences grow with every step.
/// cuDNN has a larger one for logits after training, because it reads the gradient of the output in 16 bits.
void expect_like_host(const Outcome& got, const Setting& setting) {
  const Outcome host = outcome_of(setting, DeviceChoice::kHost);
  const double within = setting.compute == DType::kFloat32 ? 2e-5 : 2e-2;
  ASSERT_EQ(got.losses.size(), host.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) EXPECT_NEAR(got.losses[i], host.losses[i], within * host.losses[i]);
  EXPECT_LT(host.losses.back(), host.losses.front());
  ASSERT_EQ(got.logits.size(), host.logits.size());
  EXPECT_EQ(got.logits.size(), 5u * static_cast<size_t>(rank_range(61, 0, setting.tensor).second));
  float largest = 0;
  for (const float logit : host.logits) largest = std::max(largest, std::abs(logit));
  const double of_bf16 = setting.attention == AttentionKernels::kCudnn ? 1e-1 : 4e-2;
  const float most = static_cast<float>(setting.compute == DType::kFloat32 ? 1e-4 : of_bf16) * largest;
  for (size_t i = 0; i < got.logits.size(); ++i) EXPECT_NEAR(got.logits[i], host.logits[i], most) << i;
}

/// The values of rates that are measured on simulated GPUs have no meaning. The test checks that each rate was measured
/// and differs from the default.
TEST(RankRates, AreMeasuredOnGpus) {
  for (const int ranks : {1, 2}) {
    World::threads(ranks,
                   [&](World& world) {
                     const CostModel typical = CostModel::typical_gpu();
                     const CostModel cost = measure_rank(
                         world, {.elements = 8192, .rows = 16, .columns = 32, .depth = 16, .repeats = 2, .rounds = 2});
                     for (const double rate : {cost.copy_bytes_per_second / typical.copy_bytes_per_second,
                                               cost.host_bytes_per_second / typical.host_bytes_per_second,
                                               cost.flops_per_second / typical.flops_per_second,
                                               typical.update_seconds_per_element / cost.update_seconds_per_element}) {
                       EXPECT_GT(rate, 0);
                       EXPECT_LT(rate, 1)
                           << "the simulated GPU is as fast as a real one, so the rate was probably not measured";
                     }
                     EXPECT_EQ(cost.inside_node.bytes_per_second != typical.inside_node.bytes_per_second, ranks > 1);
                     EXPECT_EQ(cost.cores_per_thread, 0);
                     EXPECT_FALSE(cost.compute_issues);
                   },
                   {.device = DeviceChoice::kCuda, .threads_per_rank = 1, .timeout_seconds = 60});
  }
}

class ModelsOnSimulatedGpus : public testing::TestWithParam<std::tuple<ModelShape, DType>> {};

INSTANTIATE_TEST_SUITE_P(FamiliesAndTypes, ModelsOnSimulatedGpus,
                         testing::Values(std::tuple(shape_of(ModelFamily::kGpt2), DType::kFloat32),
                                         std::tuple(shape_of(ModelFamily::kGpt2), DType::kBFloat16),
                                         std::tuple(shape_of(ModelFamily::kLlama), DType::kBFloat16),
                                         std::tuple(varied_llama(), DType::kFloat32),
                                         std::tuple(varied_llama(), DType::kBFloat16),
                                         std::tuple(adapted(shape_of(ModelFamily::kGpt2)), DType::kFloat32),
                                         std::tuple(adapted(varied_llama()), DType::kBFloat16)));

TEST_P(ModelsOnSimulatedGpus, MatchTheHostAndAreEqualAtEveryZeroStage) {
  Setting setting{.shape = std::get<0>(GetParam()), .ranks = 2, .stage = 0, .compute = std::get<1>(GetParam())};
  const Outcome first = outcome_of(setting, DeviceChoice::kCuda);
  expect_like_host(first, setting);
  static CaseSelection selection(2);  // of all parameters of the test
  for (const int stage : {2, 3}) {
    setting.stage = stage;
    if (!selection.next()) continue;
    EXPECT_TRUE(outcome_of(setting, DeviceChoice::kCuda) == first) << "ZeRO stage " << stage;
  }
  setting.recompute = 2;
  if (!selection.next()) return;
  EXPECT_TRUE(outcome_of(setting, DeviceChoice::kCuda) == first) << "with recomputation";
}

/// Sums over more than 64 rows have two stages, and use scratch. In 16 bits, training amplifies rounding errors
/// too much for this comparison.
TEST(ModelsWithManyRows, MatchTheHost) {
  for (const ModelShape& shape : {shape_of(ModelFamily::kGpt2), varied_llama()}) {
    const Setting setting{.shape = shape, .ranks = 1, .stage = 0, .batch = 5};
    expect_like_host(outcome_of(setting, DeviceChoice::kCuda), setting);
  }
}

/// Extents of linear layers that fp8 needs, also if two ranks divide them.
ModelShape fp8_shape(ModelFamily family) {
  ModelShape shape = shape_of(family);
  shape.width = shape.hidden = 64;
  return shape;
}

class Fp8ModelsOnSimulatedGpus : public testing::TestWithParam<ModelFamily> {
 protected:
  static Setting setting() {
    Setting setting{.shape = fp8_shape(GetParam()), .ranks = 2, .stage = 0, .compute = DType::kBFloat16};
    setting.rounding = OperandRounding::kFp8;
    setting.batch = 4;
    return setting;
  }
};

INSTANTIATE_TEST_SUITE_P(Families, Fp8ModelsOnSimulatedGpus, testing::Values(ModelFamily::kGpt2, ModelFamily::kLlama));

/// The operands have about 3 bits.
void expect_near(const Outcome& got, const Outcome& exact) {
  EXPECT_NE(got.losses, exact.losses);
  for (size_t i = 0; i < got.losses.size(); ++i) EXPECT_NEAR(got.losses[i], exact.losses[i], 0.01 * exact.losses[i]);
}

TEST_P(Fp8ModelsOnSimulatedGpus, HaveLossesNearThoseOfBf16AndAreEqualAtEveryZeroStage) {
  Setting one = setting();
  const Outcome first = outcome_of(one, DeviceChoice::kCuda);
  one.rounding = OperandRounding::kNone;
  expect_near(first, outcome_of(one, DeviceChoice::kCuda));
  for (const int stage : {2, 3}) {
    one = setting();
    one.stage = stage;
    one.recompute = stage == 3 ? 2 : 0;
    EXPECT_TRUE(outcome_of(one, DeviceChoice::kCuda) == first) << "ZeRO stage " << stage;
  }
}

TEST_P(Fp8ModelsOnSimulatedGpus, HaveLossesNearThoseOfBf16InTensorGroups) {
  for (const int stage : {1, 3}) {
    Setting one = setting();
    one.tensor = 2;
    one.stage = stage;
    const Outcome got = outcome_of(one, DeviceChoice::kCuda);
    one.rounding = OperandRounding::kNone;
    expect_near(got, outcome_of(one, DeviceChoice::kCuda));
  }
}

TEST(Fp8Models, NeedAGpuThatHasFp8) {
  simulated::set_compute_capability(8, 6);
  const auto device = make_cuda_device(0);
  simulated::set_compute_capability(9, 0);
  EXPECT_NO_THROW(make_cuda_backend(*device));
  try {
    make_cuda_backend(*device, {.rounding = OperandRounding::kFp8});
    ADD_FAILURE() << "a GPU without fp8 was accepted";
  } catch (const UnavailableError& error) {
    EXPECT_NE(std::string(error.what()).find("simulated #0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--products fp8"), std::string::npos) << error.what();
  }
}

/// At ZeRO stage 3, the ranks also divide rows.
TEST_P(ModelsOnSimulatedGpus, MatchTheHostInTensorGroups) {
  Setting setting{.shape = std::get<0>(GetParam()), .ranks = 2, .compute = std::get<1>(GetParam()), .tensor = 2};
  for (const int stage : {1, 3}) {
    setting.stage = stage;
    SCOPED_TRACE(stage);
    expect_like_host(outcome_of(setting, DeviceChoice::kCuda), setting);
  }
}

/// Blocks have different windows. Decoding uses the project's own kernels.
TEST(ModelsWithCudnn, MatchTheHostAndAreEqualAtEveryZeroStage) {
  ModelShape varied = varied_llama();
  varied.own_head_width = 16;
  for (const ModelShape& shape : {shape_of(ModelFamily::kGpt2), varied}) {
    Setting setting{
        .shape = shape, .ranks = 2, .stage = 0, .compute = DType::kBFloat16, .attention = AttentionKernels::kCudnn};
    const int64_t before = simulated::enqueued_attention_passes();
    const Outcome first = outcome_of(setting, DeviceChoice::kCuda);
    EXPECT_EQ(simulated::enqueued_attention_passes() - before, 2 * setting.ranks * kSteps * shape.layers);
    expect_like_host(first, setting);
    setting.stage = 3;
    setting.recompute = 2;
    EXPECT_TRUE(outcome_of(setting, DeviceChoice::kCuda) == first);
    setting.tensor = 2;
    expect_like_host(outcome_of(setting, DeviceChoice::kCuda), setting);
  }
}

}  // namespace
}  // namespace aliquot::test
