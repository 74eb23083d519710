// Tests all models: gradients match the loss, results depend only on the input, and training reduces the loss.
#include <cmath>
#include <gtest/gtest.h>

#include "apps/models/cuda/gpu_scratch.h"
#include "apps/models/make_model.h"
#include "kernels/formats/float16.h"
#include "tests/support/all_close.h"
#include "tests/support/bf16_values.h"
#include "tests/support/plain_training.h"
#include "tests/support/random_values.h"
#include "tests/support/reference_llama.h"

namespace aliquot::test {
namespace {

struct Tokens {
  std::vector<int32_t> tokens, targets;
  TokenBatch batch() const { return {tokens, targets}; }
};

Tokens some_tokens(int64_t count, int64_t vocabulary, uint64_t seed = 5) {
  RandomValues random(seed);
  Tokens t;
  for (int64_t i = 0; i < count; ++i) {
    t.tokens.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
    t.targets.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
  }
  return t;
}

// Makes the weights larger than at the start of training, so that gradients are large compared with rounding errors.
void scale_up_weights(PlainTraining& training) {
  RandomValues random(11);
  for (auto& [name, tensor] : training.tensors().tensors()) {
    for (float& p : tensor.parameter) p += 0.3f * static_cast<float>(random.uniform());
  }
}

std::vector<float> all_gradients(PlainTraining& training) {
  std::vector<float> all;
  for (const auto& [name, tensor] : training.tensors().tensors()) {
    all.insert(all.end(), tensor.gradient.begin(), tensor.gradient.end());
  }
  return all;
}

struct Result {
  double loss;
  std::vector<float> gradients;
};

Result run(const PlainOptions& options) {
  PlainTraining training(options);
  scale_up_weights(training);
  const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
  const double loss = training.pass(t.batch());
  return {loss, all_gradients(training)};
}

struct ModelCase {
  const char* name;
  ModelShape shape;
  double (*reference)(const ModelShape&, const std::map<std::string, Doubles>&, int64_t, const std::vector<int32_t>&,
                      const std::vector<int32_t>&);
};

// Most extents are not multiples of the SIMD width, and attention has more than one strip. Each key head serves one,
// two or three query heads. Epsilons and rotary frequencies differ from the defaults enough to change the results.
constexpr Rope kScaledRope{
    .theta = 10000, .scaling = RopeScaling::kLlama3, .factor = 8, .high_freq_factor = 3, .original_context = 24};
constexpr Rope kLinearRope{.theta = 10000, .scaling = RopeScaling::kLinear, .factor = 3};
constexpr Rope kDynamicRope{.theta = 100, .scaling = RopeScaling::kDynamic, .factor = 2};
constexpr Rope kYarnRope{.theta = 100,
                         .scaling = RopeScaling::kYarn,
                         .factor = 4,
                         .original_context = 16,
                         .beta_fast = 2,
                         .beta_slow = 0.25,
                         .attention_factor = 1.25,
                         .truncate = false};
const ModelCase kCases[] = {
    {"Gpt2", {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 80, 37}, reference_gpt2_loss},
    {"Llama", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37}, reference_llama_loss},
    {"LlamaWithSeparateHead", {ModelFamily::kLlama, 1, 24, 2, 1, 19, 80, 37, kScaledRope, false}, reference_llama_loss},
    {"Gpt2WithAnotherEpsilon", {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 80, 37, {}, true, 1e-2}, reference_gpt2_loss},
    {"LlamaWithAnotherTheta",
     {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {.theta = 100}, true, 1e-2},
     reference_llama_loss},
    {"LlamaWithBiases",
     {ModelFamily::kLlama, 1, 24, 2, 1, 19, 80, 37, kLinearRope, false, 1e-5, 0, true, true},
     reference_llama_loss},
    {"LlamaBeyondItsContext",
     {ModelFamily::kLlama, 1, 24, 2, 1, 19, 40, 37, kDynamicRope, true, 1e-5, 6},
     reference_llama_loss},
    {"MistralWithANarrowWindow",
     {ModelFamily::kLlama, 1, 20, 3, 1, 19, 80, 37, {}, true, 1e-5, 14, false, false, false, 2},
     reference_llama_loss},
    {"Qwen2WithAWindow",
     {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {}, true, 1e-2, 0, true, false, false, 9, {false, true}},
     reference_llama_loss},
    {"Qwen3WithWideHeads",
     {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {}, true, 1e-2, 10, false, false, true, 70, {true, false}},
     reference_llama_loss},
    {"Qwen3WithNarrowHeadsAndBiases",
     {ModelFamily::kLlama, 1, 36, 3, 3, 19, 80, 37, kYarnRope, false, 1e-3, 6, true, true, true, 33},
     reference_llama_loss},
};

class EveryModel : public testing::TestWithParam<ModelCase> {
 protected:
  static PlainOptions odd_model() {
    PlainOptions options;
    options.shape = GetParam().shape;
    options.model = {.batch = 2, .sequence = 67};
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryModel, GradientsMatchFiniteDifferences) {
  const PlainOptions options = odd_model();
  PlainTraining training(options);
  scale_up_weights(training);
  const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
  std::map<std::string, Doubles> parameters;
  for (const auto& [name, tensor] : training.tensors().tensors()) parameters[name] = widen(tensor.parameter);
  const auto reference = [&] {
    return GetParam().reference(options.shape, parameters, options.model.batch, t.tokens, t.targets) /
           static_cast<double>(training.token_count());
  };
  const double loss = training.pass(t.batch());
  EXPECT_NEAR(loss, reference(), 1e-6 * loss);

  // Compares the derivative of the loss along one random direction per tensor with a finite difference.
  for (auto& [name, values] : parameters) {
    const std::vector<float>& gradient = training.tensors()[name].gradient;
    RandomValues random(values.size());
    const Doubles before = values;
    Doubles direction(values.size());
    double slope = 0, size = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = random.uniform();
      slope += direction[i] * static_cast<double>(gradient[i]);
      size += std::abs(direction[i] * static_cast<double>(gradient[i]));
    }
    const double step = 1e-6;
    for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + step * direction[i];
    const double above = reference();
    for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] - step * direction[i];
    EXPECT_NEAR(slope, (above - reference()) / (2 * step), 2e-5 * size + 1e-9) << name;
    values = before;
  }
}

TEST_P(EveryModel, BitsDoNotDependOnThreadsLogitsOrRecomputation) {
  const Result plain = run(odd_model());
  for (const int threads : {2, 3, 7}) {
    PlainOptions options = odd_model();
    options.threads = threads;
    const Result other = run(options);
    EXPECT_EQ(other.loss, plain.loss);
    EXPECT_TRUE(same_bits(other.gradients, plain.gradients)) << threads << " threads";
  }
  PlainOptions tiles = odd_model(), recomputed = odd_model();
  tiles.model.keep_logits = false;
  recomputed.recompute = true;
  EXPECT_TRUE(same_bits(run(tiles).gradients, plain.gradients));
  EXPECT_TRUE(same_bits(run(recomputed).gradients, plain.gradients));
}

class NanoPreset : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, NanoPreset, testing::Values("gpt2-nano", "llama-nano"));

TEST_P(NanoPreset, BitsDoNotDependOnThreads) {
  PlainOptions options{.shape = find_model_preset(GetParam())->shape, .model = {.batch = 4}};
  const Result one = run(options);
  options.threads = 2;
  EXPECT_TRUE(same_bits(run(options).gradients, one.gradients));
}

TEST_P(EveryModel, GradientsAreAssignedOrAdded) {
  const Result once = run(odd_model());
  for (const GradientMode mode : {GradientMode::kAssign, GradientMode::kAdd}) {
    PlainOptions options = odd_model();
    options.model.gradients = options.model.table_gradients = mode;
    PlainTraining training(options);
    scale_up_weights(training);
    const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
    // With GradientMode::kAssign, backward must overwrite previous gradients.
    if (mode == GradientMode::kAssign) {
      for (auto& [name, tensor] : training.tensors().tensors()) std::ranges::fill(tensor.gradient, 1e30f);
    }
    training.pass(t.batch());
    if (mode == GradientMode::kAssign) {
      EXPECT_TRUE(same_bits(all_gradients(training), once.gradients));
    } else {
      training.pass(t.batch());
      Doubles twice = widen(once.gradients);
      for (double& g : twice) g *= 2;
      EXPECT_TRUE(all_close(all_gradients(training), twice, 1e-6));
    }
  }
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

float in_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }
float in_fp16(float value) { return fp16_to_float(float_to_fp16(value)); }

// In forward and backward of two transformer blocks, a value is rounded about 32 times, each time by at most half an
// ulp. The errors are independent, so their squares add.
void expect_gradients_but_for_rounding(PlainOptions options, DType compute, DType gradient_type) {
  PlainTraining exact(options);
  options.model.compute = compute;
  options.model.gradient_type = gradient_type;
  if (compute == DType::kFloat16) options.loss_scale = 0x1p12f;
  PlainTraining narrow(options);
  for (PlainTraining* training : {&exact, &narrow}) {
    scale_up_weights(*training);
    for (auto& [name, tensor] : training->tensors().tensors()) {
      for (float& p : tensor.parameter) p = compute == DType::kFloat16 ? in_fp16(p) : in_bf16(p);
    }
  }
  // Gradients that are stored in 16 bits are rounded too.
  const double half_ulp = compute == DType::kFloat16 && gradient_type == DType::kFloat32 ? kHalfUlp / 8 : kHalfUlp;
  const Tokens t = some_tokens(exact.token_count(), options.shape.vocabulary);
  const double loss = exact.pass(t.batch());
  EXPECT_NEAR(narrow.pass(t.batch()), loss, 2 * half_ulp * loss);
  for (const auto& [name, tensor] : exact.tensors().tensors()) {
    std::vector<float> difference = narrow.tensors()[name].gradient;
    for (size_t i = 0; i < difference.size(); ++i)
      difference[i] = difference[i] / options.loss_scale - tensor.gradient[i];
    EXPECT_LT(norm(difference), std::sqrt(32.0) * half_ulp * norm(tensor.gradient)) << name;
    EXPECT_GT(norm(difference), 0) << name;  // proves that 16 bits were used
  }
}

TEST_P(EveryModel, In16BitsGradientsMatchFp32UpToRounding) {
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    for (const DType gradient_type : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(std::string(name(compute)) + ", gradients in " + std::string(name(gradient_type)));
      expect_gradients_but_for_rounding(odd_model(), compute, gradient_type);
    }
  }
}

TEST_P(EveryModel, In16BitsResultsDoNotDependOnThreadsLogitsOrRecomputation) {
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    PlainOptions options = odd_model();
    options.model.compute = compute;
    const Result plain = run(options);
    PlainOptions threads = options, tiles = options, recomputed = options;
    threads.threads = 3;
    tiles.model.keep_logits = false;
    recomputed.recompute = true;
    for (const PlainOptions& other : {threads, tiles, recomputed}) {
      const Result result = run(other);
      EXPECT_EQ(result.loss, plain.loss) << name(compute);
      EXPECT_TRUE(same_bits(result.gradients, plain.gradients)) << name(compute);
    }
  }
}

/// On a GPU, uses without matrix products have scratch of sums over rows. It is less than that of a block.
TEST(ScratchOfSums, ExistsOnlyOnGpusAndForTrainedParameters) {
  ThreadPool pool(1);
  const auto gpu = make_planned_gpu_backend(pool, OperandRounding::kNone, AttentionKernels::kOwn);
  const auto host = make_host_backend(pool);
  const ModelOptions options{.batch = 2, .sequence = 100};
  for (const char* preset : {"gpt2-nano", "llama-nano"}) {
    SCOPED_TRACE(preset);
    ModelShape shape = find_model_preset(preset)->shape;
    const auto scratch_of = [&](Backend& backend) {
      const auto uses = make_model(shape, options, backend)->activations().uses;
      return std::vector{uses.front().scratch_bytes, uses[uses.size() - 2].scratch_bytes};
    };
    const int64_t bytes = 4 * gpu_row_sum_scratch_elements(200, shape.width);
    EXPECT_EQ(scratch_of(*gpu), (std::vector{bytes, bytes}));
    EXPECT_LT(bytes, kGpuProductScratchBytes);
    EXPECT_EQ(scratch_of(*host), (std::vector<int64_t>{0, 0}));
    shape.lora = {.rank = 2, .alpha = 2};
    shape.lora.add(Projection::kOutput);
    EXPECT_EQ(scratch_of(*gpu), (std::vector<int64_t>{0, 0}));
  }
}

TEST_P(NanoPreset, LearnsAPeriodicSequence) {
  PlainOptions options{.shape = find_model_preset(GetParam())->shape, .model = {.batch = 2, .sequence = 64}};
  options.learning_rate = 1e-3f;
  PlainTraining training(options);
  Tokens t;
  for (int i = 0; i < training.token_count(); ++i) {
    t.tokens.push_back(i * 7 % 31);
    t.targets.push_back((i + 1) * 7 % 31);
  }
  const double first = training.pass(t.batch());
  EXPECT_NEAR(first, std::log(256.0), 0.2);  // before training, all tokens have about the same probability
  training.update();
  double last = first;
  for (int step = 1; step < 50; ++step) {
    last = training.pass(t.batch());
    training.update();
  }
  EXPECT_LT(last, 0.5 * first);
}

}  // namespace
}  // namespace aliquot::test
