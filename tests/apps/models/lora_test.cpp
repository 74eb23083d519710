// Adapters of LoRA: their gradients, their effect on the model, and the frozen base.
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/models/make_model.h"
#include "apps/options/lora_option.h"
#include "apps/train/wrap.h"
#include "engine/engine.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/error.h"
#include "tests/support/all_close.h"
#include "tests/support/plain_training.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRank = 3;
constexpr double kAlpha = 7.5;

struct Tokens {
  std::vector<int32_t> tokens, targets;
  TokenBatch batch() const { return {tokens, targets}; }
};

Tokens some_tokens(int64_t count, int64_t vocabulary) {
  RandomValues random(5);
  Tokens t;
  for (int64_t i = 0; i < count; ++i) {
    t.tokens.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
    t.targets.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
  }
  return t;
}

ModelShape gpt2() { return {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 80, 37}; }
ModelShape llama() { return {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {}, false}; }
ModelShape qwen3() {
  return {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {}, true, 1e-2, 10, true, true, true, 33, {true, false}};
}

struct Case {
  const char* name;
  ModelShape shape;
  std::vector<std::string> targets;

  ModelShape adapted() const {
    ModelShape with = shape;
    with.lora = lora_of({kRank, kAlpha, targets}, shape.family);
    return with;
  }
};
const Case kCases[] = {{"Gpt2", gpt2(), {"all-linear"}},          {"Gpt2Attention", gpt2(), {"c_attn"}},
                       {"Llama", llama(), {"all-linear"}},        {"LlamaQueriesAndValues", llama(), {"q_proj", "v"}},
                       {"LlamaDown", llama(), {"mlp.down_proj"}}, {"Qwen3", qwen3(), {"all-linear"}}};

class LoraModels : public testing::TestWithParam<Case> {
 protected:
  static PlainOptions options_of(const ModelShape& shape) {
    PlainOptions options;
    options.shape = shape;
    options.model = {.batch = 2, .sequence = 67};
    return options;
  }
  /// Replaces all values of a model. A value depends only on the name of its tensor and on its position.
  static void randomize(PlainTraining& training) {
    for (auto& [name, tensor] : training.tensors().tensors()) {
      RandomValues random(std::hash<std::string>()(name));
      for (float& p : tensor.parameter) p += 0.3f * static_cast<float>(random.uniform());
    }
  }
  static Tokens tokens_of(const PlainTraining& training) {
    return some_tokens(training.token_count(), GetParam().shape.vocabulary);
  }
};
INSTANTIATE_TEST_SUITE_P(Models, LoraModels, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// The product of row-major matrices in double precision, multiplied by `factor`.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t rows, int64_t depth,
                            int64_t columns, double factor) {
  std::vector<double> c(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < columns; ++j)
        c[static_cast<size_t>(r * columns + j)] +=
            factor * a[static_cast<size_t>(r * depth + k)] * b[static_cast<size_t>(k * columns + j)];
    }
  }
  return c;
}

std::vector<double> transposed(const std::vector<double>& m, int64_t rows, int64_t columns) {
  std::vector<double> t(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c)
      t[static_cast<size_t>(c * rows + r)] = m[static_cast<size_t>(r * columns + c)];
  }
  return t;
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

/// A model whose weights include the adapters is the reference: with W = W0 + f B A, the gradient of B is f dW A^T, and
/// that of A is f B^T dW.
TEST_P(LoraModels, GradientsAreThoseOfTheMergedModel) {
  const ModelShape shape = GetParam().adapted();
  PlainTraining adapted(options_of(shape)), merged(options_of(GetParam().shape));
  randomize(adapted);
  randomize(merged);
  const bool inputs_first = shape.family == ModelFamily::kGpt2;
  struct Adapter {
    std::string path, weight;
    int64_t inputs = 0, outputs = 0;
    std::vector<double> a, b;
  };
  std::vector<Adapter> adapters;
  for (auto& [name, tensor] : adapted.tensors().tensors()) {
    if (!name.ends_with(kLoraA)) continue;
    Adapter one;
    one.path = name.substr(0, name.size() - kLoraA.size());
    one.weight = one.path + ".weight";
    const auto& b = adapted.tensors()[one.path + std::string(kLoraB)];
    one.inputs = tensor.shape[1];
    one.outputs = b.shape[0];
    ASSERT_EQ(tensor.shape[0], kRank);
    one.a = widened(tensor.parameter);
    one.b = widened(b.parameter);
    auto change = product(one.b, one.a, one.outputs, kRank, one.inputs, kAlpha / kRank);
    if (inputs_first) change = transposed(change, one.outputs, one.inputs);
    std::vector<float>& weight = merged.tensors()[one.weight].parameter;
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(weight[i] + change[i]);
    adapters.push_back(std::move(one));
  }
  EXPECT_EQ(std::ssize(adapters),
            shape.layers * (GetParam().targets[0] == "all-linear" ? std::ssize(projections_of(shape.family))
                                                                  : std::ssize(GetParam().targets)));
  const Tokens t = tokens_of(adapted);
  const double loss = merged.pass(t.batch());
  EXPECT_NEAR(adapted.pass(t.batch()), loss, 2e-6 * loss);
  for (const Adapter& one : adapters) {
    auto d_weight = widened(merged.tensors()[one.weight].gradient);
    if (inputs_first) d_weight = transposed(d_weight, one.inputs, one.outputs);
    const double factor = kAlpha / kRank;
    const auto d_b = product(d_weight, transposed(one.a, kRank, one.inputs), one.outputs, one.inputs, kRank, factor);
    const auto d_a = product(transposed(one.b, one.outputs, kRank), d_weight, kRank, one.outputs, one.inputs, factor);
    EXPECT_TRUE(all_close(adapted.tensors()[one.path + std::string(kLoraA)].gradient, d_a, 2e-5)) << one.path;
    EXPECT_TRUE(all_close(adapted.tensors()[one.path + std::string(kLoraB)].gradient, d_b, 2e-5)) << one.path;
  }
}

TEST_P(LoraModels, StartWithTheLossOfTheBase) {
  const ModelShape shape = GetParam().adapted();
  PlainTraining adapted(options_of(shape)), base(options_of(GetParam().shape));
  const Tokens t = tokens_of(adapted);
  EXPECT_EQ(adapted.pass(t.batch()), base.pass(t.batch()));
  double a_squares = 0;
  for (auto& [name, tensor] : adapted.tensors().tensors()) {
    if (!name.ends_with(kLoraA)) continue;
    const float bound = 1.0f / std::sqrt(static_cast<float>(tensor.shape[1]));
    for (const float value : tensor.parameter) {
      EXPECT_LE(std::abs(value), 3 * bound);
      a_squares += static_cast<double>(value) * value;
    }
  }
  EXPECT_GT(a_squares, 0);
}

TEST_P(LoraModels, FrozenParametersHaveNoGradient) {
  PlainTraining training(options_of(GetParam().adapted()));
  training.pass(tokens_of(training).batch());
  for (const auto& [name, tensor] : training.tensors().tensors()) {
    if (is_adapter(name)) continue;
    for (const float g : tensor.gradient) ASSERT_EQ(g, 0) << name;
  }
  for (const ModelUnit& unit : training.model().units()) {
    for (const ModelTensor& tensor : unit.tensors) EXPECT_EQ(tensor.trainable, is_adapter(tensor.name)) << tensor.name;
  }
}

TEST_P(LoraModels, RecomputationChangesNoBits) {
  PlainOptions options = options_of(GetParam().adapted());
  const auto gradients = [&] {
    PlainTraining training(options);
    randomize(training);
    training.pass(tokens_of(training).batch());
    std::vector<float> all;
    for (const auto& [name, tensor] : training.tensors().tensors())
      all.insert(all.end(), tensor.gradient.begin(), tensor.gradient.end());
    return all;
  };
  const std::vector<float> plain = gradients();
  options.recompute = true;
  EXPECT_TRUE(same_bits(gradients(), plain));
  options.recompute = false;
  options.threads = 3;
  EXPECT_TRUE(same_bits(gradients(), plain));
}

/// Trains on two ranks and returns the frozen parameters that changed.
std::vector<std::string> changed_frozen_parameters(const ModelShape& shape, EngineOptions options) {
  options.optimizer = AdamW{.lr = 1e-2f};
  std::vector<std::string> changed;
  World::threads(2,
                 [&](World& world) {
                   const auto stream = world.device().make_stream(Lane::kCompute);
                   const auto backend = make_host_backend(as_host_stream(*stream).pool());
                   const auto model =
                       make_model(shape, {.batch = 2, .sequence = 16, .compute = options.precision.compute}, *backend);
                   Engine engine(world, options);
                   wrap(engine, *model);
                   const auto read = [&] {
                     std::map<std::string, std::vector<float>> values;
                     for (const ModelUnit& unit : model->units()) {
                       for (const ModelTensor& tensor : unit.tensors)
                         values[unit.name + "." + tensor.name] = engine.read(unit.name + "." + tensor.name);
                     }
                     return values;
                   };
                   engine.materialize(initial_values(*model, 1));
                   const auto before = read();
                   const Tokens t = some_tokens(32, shape.vocabulary);
                   for (int step = 0; step < 3; ++step) {
                     run_passes(engine, *model, [&](int, int) { return t.batch(); });
                     EXPECT_FALSE(engine.step().skipped);
                   }
                   EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
                   for (const auto& [name, values] : read()) {
                     const bool same = static_cast<bool>(same_bits(values, before.at(name)));
                     EXPECT_TRUE(!same || !is_adapter(name)) << name << " was not trained";
                     if (!same && !is_adapter(name) && world.rank() == 0) changed.push_back(name);
                   }
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1, .timeout_seconds = 60});
  return changed;
}

TEST_P(LoraModels, TrainingKeepsTheBitsOfTheBase) {
  for (const int stage : {0, 2, 3}) {
    for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
      EngineOptions options;
      options.zero_stage = stage;
      options.precision.compute = compute;
      EXPECT_THAT(changed_frozen_parameters(GetParam().adapted(), options), testing::IsEmpty()) << stage;
    }
  }
}

TEST(Lora, OptionsHaveDefaultsAndReadTheirOwnText) {
  EXPECT_EQ(parse_lora("rank=4"), (LoraOption{4, 16, {"all-linear"}}));
  EXPECT_EQ(parse_lora("alpha=8,targets=q,v_proj,rank=2"), (LoraOption{2, 8, {"q", "v_proj"}}));
  for (const char* text : {"rank=4,alpha=0.5,targets=q,k", "rank=8,alpha=16,targets=all-linear"})
    EXPECT_EQ(lora_text(parse_lora(text)), text);
  EXPECT_EQ(lora_text({}), "");
  for (const char* text : {"", "rank", "rank=", "rank=0", "rank=x", "alpha=0", "q,k", "rank=8,q", "targets=", "size=8",
                           "rank=8,,alpha=2", "targets=q,"})
    EXPECT_THROW(parse_lora(text), UsageError) << text;
}

TEST(Lora, TargetsHaveOurNamesAndThoseOfPeft) {
  const auto words = [](ModelFamily family, std::vector<std::string> targets) {
    return target_words(lora_of({1, 1, std::move(targets)}, family), family);
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words(ModelFamily::kLlama, {"q_proj", "v"}), (Words{"q", "v"}));
  EXPECT_EQ(words(ModelFamily::kLlama, {"mlp.up_proj"}), (Words{"up"}));
  EXPECT_EQ(words(ModelFamily::kGpt2, {"c_proj"}), (Words{"o", "down"}));  // both modules have this name
  EXPECT_EQ(words(ModelFamily::kGpt2, {"attn.c_proj", "qkv"}), (Words{"qkv", "o"}));
  EXPECT_EQ(words(ModelFamily::kGpt2, {"all-linear"}), (Words{"all-linear"}));
  try {
    words(ModelFamily::kGpt2, {"q_proj"});
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("invalid target 'q_proj' for --lora: expected qkv (attn.c_attn), "
                                        "o (attn.c_proj), up (mlp.c_fc), down (mlp.c_proj), the linear layers of"));
  }
}

}  // namespace
}  // namespace aliquot::test
