// Tests the parts of Llama that other models do not have. models_test.cpp has the tests of all models.
#include "apps/models/llama.h"

#include <gtest/gtest.h>
#include <map>

#include "apps/models/layers/rotary_angles.h"
#include "kernels/system/error.h"
#include "tests/support/all_cases.h"
#include "tests/support/all_close.h"
#include "tests/support/random_values.h"
#include "tests/support/reference_llama.h"

namespace aliquot::test {
namespace {

struct Declared {
  std::map<std::string, std::vector<int64_t>> shapes;
  int64_t parameters = 0;
  size_t units = 0, uses = 0;
  bool head_is_the_table = false;
};

Declared declared(const char* preset) {
  ThreadPool pool(1);
  const auto loops = make_host_backend(pool);
  const Llama model(find_model_preset(preset)->shape, {.batch = 1, .sequence = 16}, *loops);
  Declared d;
  d.units = model.units().size();
  d.uses = model.uses().size();
  d.head_is_the_table = model.uses().front() == model.uses().back();
  for (const ModelUnit& unit : model.units()) {
    for (const ModelTensor& tensor : unit.tensors) {
      d.parameters += tensor.element_count();
      d.shapes[unit.name + "." + tensor.name] = tensor.shape;
    }
  }
  return d;
}

TEST(Llama, DeclaresHuggingFacesNamesAndShapes) {
  Declared small = declared("llama-1b");
  EXPECT_EQ(small.parameters, 1'235'814'400);
  EXPECT_EQ(small.shapes["model.embed_tokens.weight"], (std::vector<int64_t>{128256, 2048}));
  EXPECT_EQ(small.shapes["model.layers.15.self_attn.k_proj.weight"], (std::vector<int64_t>{512, 2048}));
  EXPECT_EQ(small.shapes["model.layers.0.mlp.down_proj.weight"], (std::vector<int64_t>{2048, 8192}));
  EXPECT_EQ(small.shapes.size(), 16u * 9u + 2u);
  EXPECT_TRUE(small.head_is_the_table);
  Declared large = declared("llama-8b");
  EXPECT_EQ(large.parameters, 8'030'261'248);
  EXPECT_EQ(large.shapes["lm_head.weight"], (std::vector<int64_t>{128256, 4096}));
  EXPECT_FALSE(large.head_is_the_table);
  EXPECT_EQ(large.uses, large.units);
}

TEST(Llama, RejectsOddHeadWidths) {
  ThreadPool pool(1);
  const auto loops = make_host_backend(pool);
  const ModelShape odd{ModelFamily::kLlama, 1, 15, 3, 3, 8, 16, 16};
  EXPECT_THROW(Llama(odd, {}, *loops), UsageError);
}

TEST(Llama, Llama3ScalingSlowsLowFrequenciesOnly) {
  for (const char* preset : {"llama-nano", "llama-1b", "llama-8b"}) {
    const ModelShape shape = find_model_preset(preset)->shape;
    for (int64_t pair = 0; pair < shape.head_width() / 2; ++pair) {
      const double expected = reference_rotary_speed(pair, shape, shape.context);
      EXPECT_NEAR(rotary_frequency(shape, shape.context, pair), expected, 1e-14 * expected) << preset << " " << pair;
    }
  }
  ModelShape odd = find_model_preset("llama-nano")->shape;
  odd.rope = {.theta = 10000,
              .scaling = RopeScaling::kLlama3,
              .factor = 3,
              .low_freq_factor = 2,
              .high_freq_factor = 7,
              .original_context = 512};
  for (int64_t pair = 0; pair < 16; ++pair) {
    const double expected = reference_rotary_speed(pair, odd, odd.context);
    EXPECT_NEAR(rotary_frequency(odd, odd.context, pair), expected, 1e-14 * expected) << pair;
  }
  const ModelShape shape = find_model_preset("llama-1b")->shape;
  EXPECT_EQ(rotary_frequency(shape, shape.context, 0), 1.0);
  EXPECT_NEAR(rotary_frequency(shape, shape.context, 31) * 32, std::pow(500000.0, -62.0 / 64), 1e-15);
}

// The angles per position of transformers 5.24 (double precision) for heads of 16 elements. The script
// tests/apps/models/compare_transformers.py compares whole models.
TEST(Llama, EachScalingHasTheFrequenciesOfTransformers) {
  ModelShape shape = find_model_preset("llama-nano")->shape;
  shape.own_head_width = 16;
  shape.context = 64;
  const auto expect = [&](const Rope& rope, int64_t sequence, std::initializer_list<double> expected) {
    shape.rope = rope;
    int64_t pair = 0;
    for (const double one : expected) {
      EXPECT_NEAR(rotary_frequency(shape, sequence, pair), one, 1e-12 * one) << name(rope.scaling) << " " << pair;
      EXPECT_NEAR(reference_rotary_speed(pair, shape, sequence), one, 1e-12 * one) << name(rope.scaling) << " " << pair;
      ++pair;
    }
  };
  expect({.theta = 10000, .scaling = RopeScaling::kLinear, .factor = 2.5}, 64,
         {0.4, 0.12649110640673517, 0.04, 0.012649110640673516, 0.004, 0.0012649110640673515, 0.0004,
          0.00012649110640673518});
  expect(
      {.theta = 10000, .scaling = RopeScaling::kDynamic, .factor = 2}, 64,
      {1.0, 0.31622776601683794, 0.1, 0.03162277660168379, 0.01, 0.003162277660168379, 0.001, 0.00031622776601683794});
  expect({.theta = 10000, .scaling = RopeScaling::kDynamic, .factor = 2}, 100,
         {1.0, 0.2839451388482507, 0.08062484187555236, 0.02289303192097197, 0.0065003651274578205,
          0.0018457470786803376, 0.0005240909105346416, 0.0001488130663608649});
  expect({.theta = 10000, .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 4096}, 64,
         {1.0, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.0013834964763236657, 0.00025,
          7.905694150420948e-05});
  expect({.theta = 500,
          .scaling = RopeScaling::kYarn,
          .factor = 3,
          .original_context = 100,
          .beta_fast = 8,
          .beta_slow = 0.5,
          .truncate = false},
         64,
         {1.0, 0.4500250609715569, 0.16744933090637057, 0.05883888959909701, 0.018704469506462772, 0.006855237295319265,
          0.003152472030010586, 0.0014497061840273212});
}

TEST(Llama, TheAttentionFactorMultipliesCosinesAndSines) {
  ModelShape shape = find_model_preset("llama-nano")->shape;
  const int64_t sequence = 5, half = shape.head_width() / 2;
  std::vector<float> cosines(static_cast<size_t>(sequence * half)), sines(cosines.size());
  shape.rope = {.scaling = RopeScaling::kYarn, .factor = 2, .attention_factor = 1.5};
  compute_rotary_angles(shape, sequence, cosines.data(), sines.data());
  for (size_t i = 0; i < cosines.size(); ++i) EXPECT_NEAR(std::hypot(cosines[i], sines[i]), 1.5, 1e-6);
}

TEST(Llama, RotaryAnglesAreAccurateForLongContexts) {
  const ModelShape shape = find_model_preset("llama-1b")->shape;
  const int64_t sequence = shape.context, half = shape.head_width() / 2;
  std::vector<float> cosines(static_cast<size_t>(sequence * half)), sines(cosines.size());
  compute_rotary_angles(shape, sequence, cosines.data(), sines.data());
  double worst = 0;
  for (int64_t i = 0; i < sequence * half; ++i) {
    const double angle = static_cast<double>(i / half) * rotary_frequency(shape, sequence, i % half);
    worst = std::max({worst, std::abs(std::cos(angle) - static_cast<double>(cosines[static_cast<size_t>(i)])),
                      std::abs(std::sin(angle) - static_cast<double>(sines[static_cast<size_t>(i)]))});
  }
  EXPECT_LT(worst, 1e-7);  // the accuracy of fp32
}

class LlamaLayers : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
  RandomValues random_{7};
};
INSTANTIATE_TEST_SUITE_P(Threads, LlamaLayers, testing::Values(1, 2, 3));

double along(const Doubles& output, const std::vector<float>& direction) {
  double sum = 0;
  for (size_t i = 0; i < output.size(); ++i) sum += output[i] * static_cast<double>(direction[i]);
  return sum;
}

constexpr double kForward = 2e-6, kGradient = 2e-5;

TEST_P(LlamaLayers, RmsNormMatchesFiniteDifferences) {
  const int64_t rows = 5, width = 37;
  const auto x = random_.floats(rows * width, 2), weight = random_.floats(width), from = random_.floats(rows * width);
  std::vector<float> rstd(rows), y(x.size()), dw(weight.size()), dx = random_.floats(rows * width);
  const auto before = dx;
  layer_norm_forward(pool_, {.x = x.data(),
                             .weight = weight.data(),
                             .bias = nullptr,
                             .rstd = rstd.data(),
                             .to = y.data(),
                             .rows = rows,
                             .width = width});
  EXPECT_TRUE(all_close(y, reference_rms_norm(widen(x), widen(weight)), kForward));
  layer_norm_backward_weights(pool_, {.x = x.data(),
                                      .rstd = rstd.data(),
                                      .from = from.data(),
                                      .weight = dw.data(),
                                      .bias = nullptr,
                                      .rows = rows,
                                      .width = width});
  layer_norm_backward(pool_,
                      {x.data(), weight.data(), nullptr, rstd.data(), from.data(), dx.data(), rows, width, true});
  const auto loss = [&](const Doubles& v, const Doubles& w) { return along(reference_rms_norm(v, w), from); };
  Doubles expected = difference_gradient(widen(x), [&](const Doubles& v) { return loss(v, widen(weight)); });
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(before[i]);
  EXPECT_TRUE(all_close(dx, expected, kGradient));
  EXPECT_TRUE(all_close(dw, difference_gradient(widen(weight), [&](const Doubles& w) { return loss(widen(x), w); }),
                        kGradient));
}

TEST_P(LlamaLayers, HeadNormsMatchFiniteDifferences) {
  const int64_t rows = 5, heads = 3, width = 37, copied = 6, stride = heads * width + copied + 4;
  const auto x = random_.floats(rows * stride, 2), weight = random_.floats(width);
  auto y = random_.floats(rows * stride), gradient = random_.floats(rows * stride);
  const auto y_before = y, from = gradient;
  std::vector<float> rstd(rows * heads), dw(static_cast<size_t>(width));
  head_norms_forward(pool_,
                     {x.data(), weight.data(), y.data(), rstd.data(), rows, heads, width, stride, copied, 1e-3f});
  head_norms_backward_weight(pool_,
                             {x.data(), gradient.data(), rstd.data(), dw.data(), rows, heads, width, stride, 0, width});
  head_norms_backward(pool_, {x.data(), weight.data(), gradient.data(), rstd.data(), rows, heads, width, stride});
  std::vector<float> got_y, got_gradient, only_from;
  Doubles only_x;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto column = static_cast<int64_t>(i) % stride;
    if (column >= heads * width) {
      EXPECT_EQ(y[i], column < heads * width + copied ? x[i] : y_before[i]);
      EXPECT_EQ(gradient[i], from[i]);
      continue;
    }
    got_y.push_back(y[i]);
    got_gradient.push_back(gradient[i]);
    only_from.push_back(from[i]);
    only_x.push_back(static_cast<double>(x[i]));
  }
  EXPECT_TRUE(all_close(got_y, reference_rms_norm(only_x, widen(weight), 1e-3), kForward));
  const auto loss = [&](const Doubles& v, const Doubles& w) {
    return along(reference_rms_norm(v, w, 1e-3), only_from);
  };
  EXPECT_TRUE(all_close(
      got_gradient, difference_gradient(only_x, [&](const Doubles& v) { return loss(v, widen(weight)); }), kGradient));
  EXPECT_TRUE(
      all_close(dw, difference_gradient(widen(weight), [&](const Doubles& w) { return loss(only_x, w); }), kGradient));
}

TEST_P(LlamaLayers, GatedMatchesFiniteDifferences) {
  auto gate = random_.floats(301, 6), up = random_.floats(301, 2);
  const auto from = random_.floats(301);
  gate[0] = -80.0f;
  gate[1] = 80.0f;
  const auto loss = [&](const Doubles& g, const Doubles& u) {
    Doubles y(g.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = reference_silu(g[i]) * u[i];
    return y;
  };
  std::vector<float> y(301);
  gated_forward(pool_, y.data(), {gate.data(), up.data(), 301});
  EXPECT_TRUE(all_close(y, loss(widen(gate), widen(up)), 1e-6));
  const Doubles g = widen(gate), u = widen(up);
  gated_backward(pool_, from.data(), {gate.data(), up.data(), 301});
  EXPECT_TRUE(
      all_close(gate, difference_gradient(g, [&](const Doubles& v) { return along(loss(v, u), from); }), kGradient));
  EXPECT_TRUE(
      all_close(up, difference_gradient(u, [&](const Doubles& v) { return along(loss(g, v), from); }), kGradient));
}

TEST_P(LlamaLayers, RotationIsInvertible) {
  const ModelShape shape{ModelFamily::kLlama, 1, 5 * 22, 5, 2, 8, 9, 16};
  const int64_t rows = 2 * 9, heads = 3, stride = heads * 22 + 7;  // 7 more columns, which must stay unchanged
  std::vector<float> cosines(9 * 11), sines(9 * 11);
  compute_rotary_angles(shape, 9, cosines.data(), sines.data());
  const auto before = random_.floats(rows * stride);
  auto x = before;
  Rotary rotary{2, 9, heads, 22, stride, cosines.data(), sines.data(), false};
  rotate(pool_, rotary, x.data());
  Doubles heads_alone;
  std::vector<float> got;
  for (int64_t i = 0; i < rows * stride; ++i) {
    if (i % stride >= heads * 22) {
      EXPECT_EQ(x[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
      continue;
    }
    heads_alone.push_back(static_cast<double>(before[static_cast<size_t>(i)]));
    got.push_back(x[static_cast<size_t>(i)]);
  }
  reference_rotate(heads_alone, shape, heads, 9);
  EXPECT_TRUE(all_close(got, heads_alone, kForward));
  EXPECT_FALSE(same_bits(x, before));
  rotary.back = true;
  rotate(pool_, rotary, x.data());
  EXPECT_TRUE(all_close(x, widen(before), kForward));
}

/// The heads have an odd width.
void expect_shared_keys_sum_gradients(ThreadPool& pool, RandomValues& random, int64_t window) {
  SCOPED_TRACE(testing::Message() << "window " << window);
  const ModelShape model{ModelFamily::kLlama, 1, 6 * 5, 6, 2, 8, 70, 16};
  const AttentionShape shape{1, 70, 6, 5, 2, window};
  const int64_t rows = shape.sequence;
  const auto q = random.floats(rows * shape.width(), 2), k = random.floats(rows * shape.kv_width(), 2),
             v = random.floats(rows * shape.kv_width(), 2);
  std::vector<float> from = random.floats(rows * shape.width());
  std::vector<float> qkv, y(from.size()), log_sums(static_cast<size_t>(rows * shape.heads));
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto* part : {&q, &k, &v}) {
      const auto each = static_cast<std::ptrdiff_t>(part->size()) / rows;
      qkv.insert(qkv.end(), part->begin() + row * each, part->begin() + (row + 1) * each);
    }
  }
  std::vector<float> d_qkv = random.floats(static_cast<int64_t>(qkv.size()));
  std::vector<float> scratch(
      static_cast<size_t>(pool.thread_count() * attention_scratch_elements(shape, DType::kFloat32)));
  attention_forward(pool, {shape, qkv.data(), y.data(), log_sums.data(), scratch.data()});
  const auto reference = [&](const Doubles& keys, const Doubles& values) {
    return reference_attention(reference_concatenate_qkv(model, widen(q), keys, values), 1, rows, 6, 5, window);
  };
  EXPECT_TRUE(all_close(y, reference(widen(k), widen(v)), kForward));
  attention_backward(pool, {shape, qkv.data(), y.data(), log_sums.data(), from.data(), d_qkv.data(), scratch.data()});
  std::vector<float> d_keys, d_values;
  for (int64_t i = 0; i < rows * shape.stride(); ++i) {
    const int64_t column = i % shape.stride() - shape.width();
    if (column >= 0) (column < shape.kv_width() ? d_keys : d_values).push_back(d_qkv[static_cast<size_t>(i)]);
  }
  const Doubles by_key =
      difference_gradient(widen(k), [&](const Doubles& keys) { return along(reference(keys, widen(v)), from); });
  const Doubles by_value =
      difference_gradient(widen(v), [&](const Doubles& values) { return along(reference(widen(k), values), from); });
  EXPECT_TRUE(all_close(d_keys, by_key, kGradient));
  EXPECT_TRUE(all_close(d_values, by_value, kGradient));
}

TEST_P(LlamaLayers, SharedKeysSumTheGradientsOfTheirHeads) {
  static CaseSelection selection(3);  // of all parameters of the test
  for (const int64_t window : {0, 2, 9, 66}) {
    if (selection.next()) expect_shared_keys_sum_gradients(pool_, random_, window);
  }
}

}  // namespace
}  // namespace aliquot::test
