// Tests how the model's shape is saved in checkpoints and read from them, including checkpoints of older versions.
#include "apps/checkpoints/saved_shape.h"

#include <gtest/gtest.h>

#include "apps/models/parameters.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

Manifest manifest_of(const ModelShape& shape, std::map<std::string, Scalar> scalars) {
  Manifest manifest;
  manifest.scalars = std::move(scalars);
  for (const UnitSpec& unit : parameters_of(shape).units) {
    for (const ParameterSpec& parameter : unit.parameters)
      manifest.tensors.push_back({.path = "parameters/" + parameter.tensor.name, .shape = parameter.tensor.shape});
  }
  return manifest;
}

ModelShape odd_llama() {
  return {ModelFamily::kLlama,
          2,
          32,
          4,
          2,
          48,
          64,
          100,
          {.theta = 12345,
           .scaling = RopeScaling::kLlama3,
           .factor = 2.5,
           .low_freq_factor = 2,
           .high_freq_factor = 3,
           .original_context = 16},
          false,
          1e-3};
}

/// A Qwen3 whose heads do not divide the width.
ModelShape yarn_qwen3() {
  ModelShape shape = odd_llama();
  shape.width = 30;
  shape.own_head_width = 10;
  shape.qk_norm = shape.qkv_bias = shape.output_bias = true;
  shape.window = 5;
  shape.window_layers = {false, true};
  shape.rope = {.theta = 100,
                .scaling = RopeScaling::kYarn,
                .factor = 3,
                .original_context = 16,
                .beta_fast = 16,
                .beta_slow = 2,
                .attention_factor = 1.5,
                .truncate = false};
  return shape;
}

ModelShape mistral() {
  ModelShape shape = odd_llama();
  shape.rope = {.theta = 100, .scaling = RopeScaling::kDynamic, .factor = 3};
  shape.window = 7;
  return shape;
}

TEST(SavedShape, EachDifferenceOfAVariationIsFound) {
  const auto names = [](const ModelShape& saved, const ModelShape& given) {
    std::vector<std::string> found;
    for (const ShapeDifference& difference : shape_differences(shape_scalars(saved), given))
      found.push_back(difference.name);
    return found;
  };
  using Names = std::vector<std::string>;
  ModelShape other = yarn_qwen3();
  other.window_layers = {true, true};
  EXPECT_EQ(names(yarn_qwen3(), other), Names{"window_layers"});
  other = yarn_qwen3();
  other.window = 0;
  other.window_layers.clear();
  EXPECT_EQ(names(yarn_qwen3(), other), Names{"window"});
  EXPECT_EQ(names(other, yarn_qwen3()), Names{"window"});
  other = yarn_qwen3();
  other.rope.truncate = true;
  other.rope.attention_factor = 1;
  other.rope.beta_fast = 32;
  other.rope.beta_slow = 1;
  EXPECT_EQ(names(yarn_qwen3(), other),
            (Names{"rope_attention_factor", "rope_beta_fast", "rope_beta_slow", "rope_truncate"}));
  other = yarn_qwen3();
  other.rope = odd_llama().rope;
  EXPECT_EQ(names(other, yarn_qwen3()), (Names{"rope_factor", "rope_scaling", "rope_theta"}));
}

TEST(SavedShape, WritingAndReadingKeepsTheShape) {
  ModelShape gpt2 = find_model_preset("gpt2-nano")->shape;
  gpt2.norm_epsilon = 1e-3;
  ModelShape untied = gpt2;
  untied.tied = false;
  for (const ModelShape& shape :
       {odd_llama(), gpt2, untied, find_model_preset("llama-nano")->shape, yarn_qwen3(), mistral()}) {
    EXPECT_EQ(saved_shape(manifest_of(shape, shape_scalars(shape)), "it"), shape);
    EXPECT_TRUE(shape_differences(shape_scalars(shape), shape).empty());
  }
  const std::map<std::string, Scalar> expected{
      {"heads", int64_t{4}},         {"context", int64_t{64}},       {"norm_epsilon", 1e-3},
      {"rope_theta", 12345.0},       {"rope_scaling", "llama3"},     {"rope_factor", 2.5},
      {"rope_low_freq_factor", 2.0}, {"rope_high_freq_factor", 3.0}, {"rope_original_context", int64_t{16}},
      {"window", int64_t{0}}};
  EXPECT_EQ(shape_scalars(odd_llama()), expected);
  EXPECT_EQ(shape_scalars(yarn_qwen3()).at("window_layers"), Scalar("01"));
  EXPECT_EQ(shape_scalars(mistral()).at("window_layers"), Scalar("all"));
}

/// Checkpoints of older versions lack some scalars of the shape. Their models have theta 500000, epsilon 1e-5 and the
/// frequency factors of Llama 3.1.
TEST(SavedShape, OldCheckpointsHaveTheDefaultsOfTheirVersion) {
  ModelShape shape = find_model_preset("llama-nano")->shape;
  std::map<std::string, Scalar> older{{"heads", int64_t{4}}, {"context", int64_t{128}}, {"rotary_factor", int64_t{1}}};
  EXPECT_EQ(saved_shape(manifest_of(shape, older), "it"), shape);
  EXPECT_TRUE(shape_differences(older, shape).empty());
  older["rotary_factor"] = int64_t{32};
  shape.rope = find_model_preset("llama-1b")->shape.rope;
  EXPECT_EQ(saved_shape(manifest_of(shape, older), "it"), shape);
  EXPECT_TRUE(shape_differences(older, shape).empty());
  shape.rope.theta = 10000;
  shape.norm_epsilon = 1e-6;
  const auto differences = shape_differences(older, shape);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].name, "norm_epsilon");
  EXPECT_EQ(differences[0].saved, Scalar(1e-5));
  EXPECT_EQ(differences[1].name, "rope_theta");
  EXPECT_EQ(differences[1].saved, Scalar(500000.0));
}

TEST(SavedShape, WithoutScalarsThePresetOrTheCallerGivesTheHeads) {
  const ModelShape preset = find_model_preset("llama-8b")->shape;
  EXPECT_EQ(saved_shape(manifest_of(preset, {}), "it"), preset);
  EXPECT_TRUE(shape_differences({}, preset).empty());
  const auto unknown = saved_shape(manifest_of(odd_llama(), {}), "it");
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->heads, 0);
  const auto asked = saved_shape(manifest_of(odd_llama(), {}), "it", 8);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->kv_heads, 4);
  Manifest other;
  other.tensors.push_back({.path = "parameters/w", .shape = {2}});
  EXPECT_FALSE(saved_shape(other, "it"));
}

/// These combinations can only come from weights that no model type of transformers has.
TEST(SavedShape, ShapesWithoutAModelTypeAreRejected) {
  const auto refusal = [](void (*change)(ModelShape&)) {
    ModelShape shape = odd_llama();
    change(shape);
    try {
      saved_shape(manifest_of(shape, shape_scalars(shape)), "it");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto sentence = [](const std::string& what) {
    return "it: no model type of transformers has " + what + ": use the config.json of the weights.";
  };
  EXPECT_EQ(refusal([](ModelShape& s) { s.output_bias = true; }),
            sentence("a bias on o_proj but not on q_proj, k_proj and v_proj"));
  EXPECT_EQ(refusal([](ModelShape& s) { s.qk_norm = s.qkv_bias = true; }),
            sentence("QK norms and biases on q_proj, k_proj and v_proj but not on o_proj"));
  EXPECT_EQ(refusal([](ModelShape& s) {
              s.output_bias = s.qkv_bias = true;
              s.window = 4;
            }),
            sentence("sliding-window attention and a bias on o_proj, without QK norms"));
  EXPECT_EQ(refusal([](ModelShape& s) {
              s.output_bias = s.qkv_bias = true;
              s.width = 30;
              s.own_head_width = 8;
            }),
            sentence("heads that do not divide the width and a bias on o_proj"));
  EXPECT_EQ(refusal([](ModelShape& s) {
              s.window = 4;
              s.window_layers = {true, false};
            }),
            sentence("sliding-window attention in only some layers, without biases or QK norms"));
}

TEST(SavedShape, InvalidScalarsAreRejected) {
  const auto refusal = [](const char* name, const Scalar& value) {
    std::map<std::string, Scalar> scalars = shape_scalars(odd_llama());
    scalars[name] = value;
    try {
      saved_shape(manifest_of(odd_llama(), scalars), "it");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(
      refusal("heads", std::string("4")),
      "it: the checkpoint's scalar heads is 4, which has the wrong type: expected a checkpoint of aliquot train or "
      "aliquot checkpoint import.");
  EXPECT_EQ(refusal("heads", int64_t{0}), "it: heads 0 does not divide the width 32: use another number of heads.");
  EXPECT_EQ(refusal("norm_epsilon", -1.0), "it: norm_epsilon is -1: expected a number from 1e-30 to 1.");
  EXPECT_EQ(refusal("rope_theta", 0.0), "it: rope_theta is 0: expected a number from 1 to 1e+30.");
  EXPECT_EQ(refusal("rope_scaling", std::string("longrope")),
            "it: the checkpoint's scalar rope_scaling is longrope: expected none, linear, dynamic, yarn or llama3.");
  EXPECT_EQ(refusal("window", int64_t{-1}), "it: sliding_window is -1: expected a number from 1 to 2147483648.");
  EXPECT_EQ(refusal("window_layers", std::string("0x")),
            "it: the checkpoint's scalar window_layers is 0x: expected all, or 0 or 1 for each layer.");
  EXPECT_EQ(refusal("window_layers", std::string("011")),
            "it: layer_types lists the attention of 3 layers, but the model has layers 2: leave layers out, or change "
            "layer_types.");
  EXPECT_EQ(refusal("rope_factor", 0.5), "it: the RoPE scaling's factor is 0.5: expected a number from 1 to 1000000.");
}

}  // namespace
}  // namespace aliquot::test
