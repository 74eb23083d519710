#include "apps/models/gpt2.h"

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/bf16_values.h"
#include "tests/support/closeness.h"
#include "tests/support/plain_training.h"
#include "tests/support/random_values.h"
#include "tests/support/reference_layers.h"

namespace aliquot::test {
namespace {

// Nothing a multiple of a vector, more than one strip of attention.
PlainOptions odd_model() {
  PlainOptions options;
  options.shape = {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 80, 37};
  options.model = {.batch = 2, .sequence = 67};
  return options;
}

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

// Larger weights than at the start of training, so that no gradient is lost in the noise of fp32.
void enlarge(PlainTraining& training) {
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
  enlarge(training);
  const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
  const double loss = training.pass(t.batch());
  return {loss, all_gradients(training)};
}

TEST(Gpt2, GradientsAgreeWithDifferencesInDouble) {
  const PlainOptions options = odd_model();
  PlainTraining training(options);
  enlarge(training);
  const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
  std::map<std::string, Doubles> parameters;
  for (const auto& [name, tensor] : training.tensors().tensors()) parameters[name] = widen(tensor.parameter);
  const auto reference = [&] {
    return reference_gpt2_loss(options.shape, parameters, options.model.batch, t.tokens, t.targets) /
           static_cast<double>(training.token_count());
  };
  const double loss = training.pass(t.batch());
  EXPECT_NEAR(loss, reference(), 1e-6 * loss);

  for (auto& [name, values] : parameters) {  // along one random direction a tensor: every element takes part
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

TEST(Gpt2, BitsDoNotDependOnThreadsLogitsOrRecomputation) {
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

TEST(Gpt2, BitsDoNotDependOnThreadsAtNano) {
  PlainOptions options{.shape = find_model_preset("gpt2-nano")->shape, .model = {.batch = 4}};
  const Result one = run(options);
  options.threads = 2;
  EXPECT_TRUE(same_bits(run(options).gradients, one.gradients));
}

TEST(Gpt2, AssignsOrAddsAsDeclared) {
  const Result once = run(odd_model());
  for (const GradientWrite mode : {GradientWrite::kAssign, GradientWrite::kAdd}) {
    PlainOptions options = odd_model();
    options.model.gradients = options.model.table_gradients = mode;
    PlainTraining training(options);
    enlarge(training);
    const Tokens t = some_tokens(training.token_count(), options.shape.vocabulary);
    if (mode == GradientWrite::kAssign) {  // whatever was there
      for (auto& [name, tensor] : training.tensors().tensors()) std::ranges::fill(tensor.gradient, 1e30f);
    }
    training.pass(t.batch());
    if (mode == GradientWrite::kAssign) {
      EXPECT_TRUE(same_bits(all_gradients(training), once.gradients));
    } else {
      training.pass(t.batch());
      Doubles twice = widen(once.gradients);
      for (double& g : twice) g *= 2;
      EXPECT_TRUE(close(all_gradients(training), twice, 1e-6));
    }
  }
}

TEST(Gpt2, DeclaresHuggingFacesNamesAndShapes) {
  ThreadPool pool(1);
  const Gpt2 model(find_model_preset("gpt2-124m")->shape, {.batch = 1, .sequence = 16}, pool);
  int64_t parameters = 0;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ModelUnit& unit : model.units()) {
    for (const ModelTensor& tensor : unit.tensors) {
      parameters += tensor.element_count();
      shapes[unit.name + "." + tensor.name] = tensor.shape;
    }
  }
  EXPECT_EQ(parameters, 124439808);
  EXPECT_EQ(shapes.size(), 2u + 12u * 12u + 2u);
  EXPECT_EQ(shapes["wte.weight"], (std::vector<int64_t>{50257, 768}));
  EXPECT_EQ(shapes["h.11.attn.c_attn.weight"], (std::vector<int64_t>{768, 2304}));
  EXPECT_EQ(shapes["h.0.mlp.c_proj.weight"], (std::vector<int64_t>{3072, 768}));
  ASSERT_EQ(model.uses().size(), model.units().size() + 1);
  EXPECT_EQ(model.uses().front(), model.uses().back());  // the tied table, first and last
}

TEST(Gpt2, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const ModelShape nano = find_model_preset("gpt2-nano")->shape;
  EXPECT_THROW(Gpt2(nano, {.sequence = 129}, pool), UsageError);
  EXPECT_THROW(Gpt2(nano, {.batch = 0}, pool), UsageError);
  ModelShape crooked = nano;
  crooked.heads = crooked.kv_heads = 3;
  EXPECT_THROW(Gpt2(crooked, {}, pool), UsageError);
  Gpt2 model(nano, {.batch = 1, .sequence = 2}, pool);
  const std::vector<int32_t> good{1, 2}, high{1, 256}, low{-1, 2}, few{1};
  EXPECT_THROW(model.set_batch({high, good}), UsageError);
  EXPECT_THROW(model.set_batch({good, low}), UsageError);
  EXPECT_THROW(model.set_batch({good, few}), UsageError);
  EXPECT_NO_THROW(model.set_batch({good, good}));
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

// Two blocks round about 32 times between a token and its gradient, there and back, each time by half an ulp at most and
// to no side in particular: squares add.
TEST(Gpt2, InBf16GradientsAreThoseOfFp32ButForRounding) {
  for (const DType gradient_type : {DType::kFloat32, DType::kBFloat16}) {
    PlainOptions options = odd_model();
    PlainTraining exact(options);
    options.model.compute = DType::kBFloat16;
    options.model.gradient_type = gradient_type;
    PlainTraining narrow(options);
    for (PlainTraining* training : {&exact, &narrow}) {
      enlarge(*training);
      for (auto& [name, tensor] : training->tensors().tensors()) {
        for (float& p : tensor.parameter) p = bf16_to_float(float_to_bf16(p));
      }
    }
    const Tokens t = some_tokens(exact.token_count(), options.shape.vocabulary);
    const double loss = exact.pass(t.batch());
    EXPECT_NEAR(narrow.pass(t.batch()), loss, 2 * kHalfUlp * loss);
    for (const auto& [name, tensor] : exact.tensors().tensors()) {
      std::vector<float> difference = narrow.tensors()[name].gradient;
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= tensor.gradient[i];
      EXPECT_LT(norm(difference), std::sqrt(32.0) * kHalfUlp * norm(tensor.gradient)) << name;
      EXPECT_GT(norm(difference), 0) << name;  // it was bf16
    }
  }
}

TEST(Gpt2, InBf16BitsDoNotDependOnThreadsLogitsOrRecomputation) {
  PlainOptions options = odd_model();
  options.model.compute = DType::kBFloat16;
  const Result plain = run(options);
  PlainOptions threads = options, tiles = options, recomputed = options;
  threads.threads = 3;
  tiles.model.keep_logits = false;
  recomputed.recompute = true;
  for (const PlainOptions& other : {threads, tiles, recomputed}) {
    const Result result = run(other);
    EXPECT_EQ(result.loss, plain.loss);
    EXPECT_TRUE(same_bits(result.gradients, plain.gradients));
  }
}

TEST(Gpt2, ANanoModelLearnsWhatRepeats) {
  PlainOptions options{.shape = find_model_preset("gpt2-nano")->shape, .model = {.batch = 2, .sequence = 64}};
  options.learning_rate = 1e-3f;
  PlainTraining training(options);
  Tokens t;
  for (int i = 0; i < training.token_count(); ++i) {
    t.tokens.push_back(i * 7 % 31);
    t.targets.push_back((i + 1) * 7 % 31);
  }
  const double first = training.pass(t.batch());
  EXPECT_NEAR(first, std::log(256.0), 0.2);  // at the start every token is about as likely
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
