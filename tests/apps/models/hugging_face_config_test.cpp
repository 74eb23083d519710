// Tests how config.json is read, and the messages for invalid and unsupported files.
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "apps/models/hugging_face/config.h"
#include "apps/models/hugging_face/weights.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::ordered_json;

Json gpt2() {
  return Json::parse(
      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 100})");
}

Json decoder(const char* type) {
  Json json = Json::parse(R"({"model_type": "", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 100})");
  json["model_type"] = type;
  return json;
}
Json llama() { return decoder("llama"); }
Json mistral() { return decoder("mistral"); }
Json qwen2() { return decoder("qwen2"); }
Json qwen3() { return decoder("qwen3"); }

/// Returns `base` with the keys of `change` replaced. The value "absent" removes a key.
Json changed(Json base, const char* change) {
  const Json changes = Json::parse(change);
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent") {
      base.erase(key);
    } else {
      base[key] = value;
    }
  }
  return base;
}

ModelConfig parsed(const Json& json) { return parse_model_config(json.dump(), "config.json"); }

std::string refusal(const std::string& text) {
  try {
    parse_model_config(text, "config.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelConfig, AbsentFieldsHaveTheDefaultsOfTransformers) {
  const ModelShape small = parsed(gpt2()).shape;
  EXPECT_EQ(small, (ModelShape{ModelFamily::kGpt2, 2, 32, 4, 4, 128, 64, 100}));
  const ModelShape shape = parsed(changed(llama(), R"({"num_key_value_heads": "absent"})")).shape;
  EXPECT_EQ(shape, (ModelShape{ModelFamily::kLlama, 2, 32, 4, 4, 96, 64, 100, {.theta = 10000}, false, 1e-6}));
}

/// Each type has its own defaults in transformers.
TEST(ModelConfig, AbsentFieldsHaveTheDefaultsOfTheirModelType) {
  const char* absent = R"({"num_key_value_heads": "absent", "num_attention_heads": 32, "hidden_size": 64})";
  ModelShape expected{ModelFamily::kLlama, 2, 64, 32, 32, 96, 64, 100, {.theta = 10000}, false, 1e-6};
  EXPECT_EQ(parsed(changed(llama(), absent)).shape, expected);
  expected.qkv_bias = true;
  EXPECT_EQ(parsed(changed(qwen2(), absent)).shape, expected);
  expected.qkv_bias = false;
  expected.qk_norm = true;
  expected.own_head_width = 128;
  EXPECT_EQ(parsed(changed(qwen3(), absent)).shape, expected);
  expected.qk_norm = false;
  expected.own_head_width = 0;
  expected.kv_heads = 8;
  expected.window = 4096;
  EXPECT_EQ(parsed(changed(mistral(), absent)).shape, expected);
}

TEST(ModelConfig, VariationsAreRead) {
  const auto shape = [](const Json& base, const char* change) { return parsed(changed(base, change)).shape; };
  ModelShape shape_of_llama = shape(llama(), R"({"attention_bias": true, "head_dim": 10})");
  EXPECT_TRUE(shape_of_llama.qkv_bias && shape_of_llama.output_bias && !shape_of_llama.qk_norm);
  EXPECT_EQ(shape_of_llama.own_head_width, 10);
  EXPECT_EQ(shape_of_llama.query_width(), 40);
  EXPECT_EQ(shape(mistral(), R"({"sliding_window": 9, "head_dim": null})").window, 9);
  EXPECT_EQ(shape(mistral(), R"({"sliding_window": null})").window, 0);
  EXPECT_EQ(shape(mistral(), R"({"hidden_size": 30, "head_dim": 8})").query_width(), 32);  // 4 does not divide 30
  const ModelShape biased = shape(qwen3(), R"({"attention_bias": true, "head_dim": 8})");
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.qk_norm);
  EXPECT_EQ(biased.own_head_width, 0);  // 8 is hidden_size / num_attention_heads
}

TEST(ModelConfig, WindowsOfLayersAreRead) {
  const auto windows = [](const char* change) {
    const ModelShape shape = parsed(changed(qwen2(), change)).shape;
    return std::vector{shape.window_of(0), shape.window_of(1)};
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows(R"({"sliding_window": 9})"), (Windows{0, 0}));
  EXPECT_EQ(windows(R"({"sliding_window": 9, "use_sliding_window": true})"), (Windows{0, 0}));  // from layer 28 on
  EXPECT_EQ(windows(R"({"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 1})"), (Windows{0, 9}));
  EXPECT_EQ(windows(R"({"use_sliding_window": true, "max_window_layers": 0})"), (Windows{4096, 4096}));
  EXPECT_EQ(windows(R"({"sliding_window": null, "use_sliding_window": true, "max_window_layers": 0})"),
            (Windows{0, 0}));
  EXPECT_EQ(windows(R"({"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 0,
      "layer_types": ["sliding_attention", "full_attention"]})"),
            (Windows{9, 0}));
  // The two spellings of one model give equal shapes.
  EXPECT_EQ(
      parsed(changed(qwen2(), R"({"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 0})")).shape,
      parsed(changed(qwen2(), R"({"sliding_window": 9, "use_sliding_window": true,
                "layer_types": ["sliding_attention", "sliding_attention"]})"))
          .shape);
  EXPECT_EQ(parsed(changed(qwen2(), R"({"sliding_window": 9})")).shape, parsed(qwen2()).shape);
}

TEST(ModelConfig, FieldsAreRead) {
  EXPECT_EQ(parsed(changed(gpt2(), R"({"layer_norm_epsilon": 1e-6, "n_inner": 96})")).shape,
            (ModelShape{ModelFamily::kGpt2, 2, 32, 4, 4, 96, 64, 100, {}, true, 1e-6}));
  EXPECT_EQ(parsed(changed(gpt2(), R"({"n_inner": null, "activation_function": "gelu_pytorch_tanh"})")).shape.hidden,
            128);
  const ModelShape shape = parsed(changed(llama(), R"({"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "head_dim": 8,
      "tie_word_embeddings": true, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false})"))
                               .shape;
  EXPECT_EQ(shape, (ModelShape{ModelFamily::kLlama, 2, 32, 4, 2, 96, 64, 100, {.theta = 10000}, true, 1e-5}));
}

TEST(ModelConfig, RopeIsReadFromBothOfItsKeys) {
  const Rope slowed{.theta = 500000,
                    .scaling = RopeScaling::kLlama3,
                    .factor = 32,
                    .low_freq_factor = 2,
                    .high_freq_factor = 5,
                    .original_context = 4096};
  const char* parts = R"("rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0,
      "original_max_position_embeddings": 4096)";
  const auto rope = [](const std::string& change) { return parsed(changed(llama(), change.c_str())).shape.rope; };
  EXPECT_EQ(rope(std::string(R"({"rope_theta": 500000, "rope_scaling": {)") + parts + "}}"), slowed);
  EXPECT_EQ(rope(std::string(R"({"rope_parameters": {"rope_theta": 500000.0, )") + parts + "}}"), slowed);
  EXPECT_EQ(rope(R"({"rope_parameters": {"rope_theta": 2e6, "rope_type": "default"}})"), Rope{.theta = 2e6});
  EXPECT_EQ(rope(R"({"rope_theta": 2e6, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}})"),
            Rope{.theta = 2e6});
  EXPECT_EQ(rope(R"({"rope_theta": 5, "rope_scaling": {"type": "default"}})"), Rope{.theta = 5});
  EXPECT_EQ(rope(R"({"rope_scaling": {"type": "linear", "factor": 2.5}})"),
            (Rope{.theta = 10000, .scaling = RopeScaling::kLinear, .factor = 2.5}));
  EXPECT_EQ(rope(R"({"rope_parameters": {"rope_type": "dynamic", "factor": 2, "rope_theta": 7}})"),
            (Rope{.theta = 7, .scaling = RopeScaling::kDynamic, .factor = 2}));
  EXPECT_EQ(rope(R"({"rope_theta": 7, "rope_scaling": {"type": "default"}, "rope_parameters":
      {"type": "default", "rope_theta": 7.0}})"),
            Rope{.theta = 7});
  EXPECT_EQ(rope(R"({"rope_scaling": {}, "rope_parameters": {"rope_theta": 7}})"), Rope{.theta = 7});
}

TEST(ModelConfig, YarnIsReadAsInTransformers) {
  const auto rope = [](const std::string& parts) {
    return parsed(changed(llama(), (R"({"rope_scaling": {"rope_type": "yarn", )" + parts + "}}").c_str())).shape.rope;
  };
  const std::string four = R"("factor": 4, "original_max_position_embeddings": 16)";
  Rope expected{.theta = 10000, .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 16};
  expected.attention_factor = 0.1 * std::log(4.0) + 1;
  EXPECT_EQ(rope(four), expected);
  EXPECT_EQ(rope(four + R"(, "mscale": 0.5, "beta_fast": 0, "beta_slow": null)"), expected);  // as without these keys
  EXPECT_EQ(rope(R"("factor": null, "original_max_position_embeddings": 16)"), expected);     // 64 / 16
  expected.original_context = 64;  // the default is max_position_embeddings
  EXPECT_EQ(rope(R"("factor": 4)"), expected);
  expected.original_context = 16;
  expected.attention_factor = (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1);
  EXPECT_EQ(rope(four + R"(, "mscale": 0.5, "mscale_all_dim": 2)"), expected);
  expected.attention_factor = 1.5;
  expected.beta_fast = 16;
  expected.beta_slow = 2;
  expected.truncate = false;
  EXPECT_EQ(
      rope(four + R"(, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": false, "mscale": 3)"),
      expected);
}

/// An exported configuration defines the same model and has only keys that the reader knows.
TEST(ModelConfig, WritingAndReadingKeepsTheShape) {
  std::vector<ModelShape> shapes;
  for (const ModelPreset& preset : model_presets()) shapes.push_back(preset.shape);
  shapes.push_back(parsed(changed(gpt2(), R"({"layer_norm_epsilon": 3e-7, "n_inner": 96})")).shape);
  shapes.push_back(parsed(changed(llama(), R"({"rms_norm_eps": 3e-7, "rope_theta": 12345.5})")).shape);
  shapes.push_back(
      {ModelFamily::kLlama,
       1,
       16,
       2,
       1,
       24,
       64,
       50,
       {.theta = 7, .scaling = RopeScaling::kLlama3, .factor = 1.5, .low_freq_factor = 0.5, .original_context = 9},
       false,
       1e-3});
  for (const char* scaling : {R"({"type": "linear", "factor": 2})", R"({"type": "dynamic", "factor": 3.5})",
                              R"({"type": "yarn", "factor": 3, "beta_slow": 2, "truncate": false})"}) {
    Json json = llama();
    json["rope_scaling"] = Json::parse(scaling);
    shapes.push_back(parsed(json).shape);
  }
  shapes.push_back(parsed(changed(llama(), R"({"attention_bias": true, "head_dim": 12})")).shape);
  shapes.push_back(parsed(changed(mistral(), R"({"sliding_window": 9})")).shape);
  shapes.push_back(parsed(changed(mistral(), R"({"sliding_window": null, "hidden_size": 30, "head_dim": 8})")).shape);
  const char* window = R"({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 5})";
  for (const Json& base : {qwen2(), qwen3(), changed(qwen3(), R"({"attention_bias": true})")}) {
    shapes.push_back(parsed(base).shape);
    shapes.push_back(parsed(changed(base, window)).shape);
  }
  for (const ModelShape& shape : shapes) {
    const ModelConfig read = parse_model_config(config_text(shape, "float32"), "config.json");
    EXPECT_EQ(read.shape, shape) << config_text(shape, "float32");
    EXPECT_TRUE(read.remarks.empty()) << read.remarks.front();
  }
}

/// transformers' Llama rejects heads that do not divide the width, and its Mistral does not.
TEST(ModelConfig, ExportsHaveAModelTypeThatComputesTheSame) {
  const auto exported = [](const Json& json) {
    const Json config = Json::parse(config_text(parsed(json).shape, "float32"));
    return config["model_type"].get<std::string>() + " " + config["architectures"][0].get<std::string>();
  };
  EXPECT_EQ(exported(llama()), "llama LlamaForCausalLM");
  EXPECT_EQ(exported(changed(mistral(), R"({"sliding_window": null})")), "llama LlamaForCausalLM");
  EXPECT_EQ(exported(changed(mistral(), R"({"sliding_window": null, "hidden_size": 30, "head_dim": 8})")),
            "mistral MistralForCausalLM");
  EXPECT_EQ(exported(mistral()), "mistral MistralForCausalLM");
  EXPECT_EQ(exported(qwen2()), "qwen2 Qwen2ForCausalLM");
  EXPECT_EQ(exported(qwen3()), "qwen3 Qwen3ForCausalLM");
}

/// Published files have keys that do not affect the model.
TEST(ModelConfig, PublishedFilesAreAccepted) {
  const ModelConfig gpt2_124m =
      parse_model_config(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})",
                         "hf/config.json");
  EXPECT_EQ(gpt2_124m.shape, find_model_preset("gpt2-124m")->shape);
  EXPECT_EQ(gpt2_124m.remarks, (std::vector<std::string>{"hf/config.json: attn_pdrop 0.1, embd_pdrop 0.1, resid_pdrop "
                                                         "0.1: dropout is not supported, training uses 0."}));
  const ModelConfig llama_8b = parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})",
                                                  "hf/config.json");
  ModelShape expected = find_model_preset("llama-8b")->shape;
  expected.context = 131072;
  EXPECT_EQ(llama_8b.shape, expected);
  EXPECT_TRUE(llama_8b.remarks.empty());
  const ModelConfig mistral_7b = parse_model_config(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true,
    "vocab_size": 32000})",
                                                    "hf/config.json");
  EXPECT_EQ(mistral_7b.shape.window, 4096);
  EXPECT_TRUE(mistral_7b.remarks.empty());
  const ModelConfig qwen3_06b = parse_model_config(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})",
                                                   "hf/config.json");
  ModelShape expected_06b{ModelFamily::kLlama, 28, 1024, 16, 8, 3072, 40960, 151936, {.theta = 1e6}, true, 1e-6, 128};
  expected_06b.qk_norm = true;
  EXPECT_EQ(qwen3_06b.shape, expected_06b);
  EXPECT_TRUE(qwen3_06b.remarks.empty());
}

struct Refusal {
  Json base;
  const char* change;
  const char* sentence;
};

void expect_refusals(const std::vector<Refusal>& cases) {
  for (const Refusal& one : cases) {
    const std::string sentence = refusal(changed(one.base, one.change).dump());
    EXPECT_NE(sentence.find(std::string("config.json: ") + one.sentence), std::string::npos) << one.change << "\n"
                                                                                             << sentence;
    EXPECT_EQ(sentence.back(), '.') << sentence;
  }
}

TEST(ModelConfig, UnsupportedFieldsOfGpt2AreRejectedByName) {
  expect_refusals({
      {gpt2(), R"({"activation_function": "relu"})",
       R"(activation_function is "relu": not supported (only "gelu_new", "gelu_pytorch_tanh",)"},
      {gpt2(), R"({"activation_function": "gelu"})", R"(activation_function is "gelu": not supported)"},
      {gpt2(), R"({"scale_attn_weights": false})", "scale_attn_weights is false: not supported (only true)."},
      {gpt2(), R"({"scale_attn_by_inverse_layer_idx": true})",
       "scale_attn_by_inverse_layer_idx is true: not supported (only false)."},
      {gpt2(), R"({"add_cross_attention": true})", "add_cross_attention is true: not supported (only false, null)."},
      {gpt2(), R"({"quantization_config": {"bits": 4}})",
       R"(quantization_config is {"bits":4}: not supported (only null).)"},
      {gpt2(), R"({"auto_map": {"AutoModel": "its.Own"}})", "auto_map is {"},
      {gpt2(), R"({"pruned_heads": {"1": [0]}})", R"(pruned_heads is {"1":[0]}: not supported (only {}, null).)"},
      {gpt2(), R"({"architectures": ["GPT2ForSequenceClassification"]})",
       R"(architectures is ["GPT2ForSequenceClassification"]: not supported (only GPT2LMHeadModel, GPT2Model).)"},
      {gpt2(), R"({"model_type": "opt"})",
       R"(model_type is "opt": not supported (only gpt2, llama, mistral, qwen2, qwen3).)"},
      {gpt2(), R"({"model_type": "absent"})",
       "model_type is missing: not supported (only gpt2, llama, mistral, qwen2, qwen3)."},
  });
}

TEST(ModelConfig, UnsupportedFieldsOfLlamaAreRejectedByName) {
  expect_refusals({
      {llama(), R"({"hidden_act": "gelu"})", R"(hidden_act is "gelu": not supported (only "silu", "swish").)"},
      {llama(), R"({"mlp_bias": true})", "mlp_bias is true: not supported (only false, null)."},
      {llama(), R"({"sliding_window": 32})",
       "sliding_window is 32: not supported (only null, or use_sliding_window false)."},
      {llama(), R"({"layer_types": ["full_attention", "sliding_attention"]})",
       R"(layer_types is ["full_attention","sliding_attention"]: not supported (only "full_attention" in every layer).)"},
      {llama(), R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5: not supported (only 1, null)."},
  });
  EXPECT_EQ(refusal(changed(llama(), R"({"sliding_window": 32, "use_sliding_window": false})").dump()), "accepted");
}

TEST(ModelConfig, UnsupportedVariationsAreRejectedByName) {
  const char* twice = R"({"use_sliding_window": true, "sliding_window": 4, "layer_types": ["full_attention"]})";
  expect_refusals({
      {llama(), R"({"head_dim": 9})", "head_dim is 9: rotary position embedding needs an even number."},
      {llama(), R"({"hidden_size": 30, "head_dim": 8})", "hidden_size 30 is not a multiple of num_attention_heads 4"},
      {llama(), R"({"head_dim": 1048576})", "head_dim is 1048576: with num_attention_heads 4 expected at most 262144."},
      {llama(), R"({"attention_bias": 1})", "attention_bias is 1: expected true or false."},
      {qwen3(), R"({"head_dim": null})", "head_dim is null: expected an integer from 1 to 1048576."},
      {mistral(), R"({"attention_bias": true})", "attention_bias is true: not supported (only false, null)."},
      {mistral(), R"({"use_sliding_window": false})", "use_sliding_window is false: not supported (only true, null)."},
      {mistral(), R"({"sliding_window": 0})", "sliding_window is 0: expected an integer from 1 to 16777216."},
      {mistral(), R"({"layer_types": ["full_attention", "sliding_attention"]})",
       R"(layer_types is ["full_attention","sliding_attention"]: not supported (only "sliding_attention" in every layer).)"},
      {qwen2(), R"({"attention_bias": false})", "attention_bias is false: not supported (only true, null)."},
      {qwen2(), twice, R"(layer_types is ["full_attention"]: expected a list of 2 values.)"},
      {qwen2(), R"({"layer_types": ["full_attention", "sliding_attention"]})",
       R"(layer_types is ["full_attention","sliding_attention"]: "sliding_attention" needs use_sliding_window true and a )"
       "sliding_window."},
      {qwen3(), R"({"layer_types": ["full_attention", "chunked_attention"]})",
       R"(layer_types is ["full_attention","chunked_attention"]: not supported (only "full_attention" and )"
       R"("sliding_attention").)"},
      {qwen3(), R"({"max_window_layers": -1})", "max_window_layers is -1: expected an integer from 0 to 16777216."},
      {qwen2(), R"({"architectures": ["Qwen2MoeForCausalLM"]})", R"(architectures is ["Qwen2MoeForCausalLM"]: not)"},
      {qwen3(), R"({"model_type": "qwen3_moe"})",
       R"(model_type is "qwen3_moe": not supported (only gpt2, llama, mistral,)"},
  });
}

TEST(ModelConfig, UnsupportedRopeIsRejectedByName) {
  expect_refusals({
      {llama(), R"({"rope_scaling": {"type": "longrope", "factor": 2.0}})",
       R"(rope_scaling is {"type":"longrope","factor":2.0}: not supported (only null, "default", "linear", "dynamic", )"
       R"("llama3", "yarn").)"},
      {llama(), R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor is null: expected a number."},
      {llama(), R"({"rope_scaling": {"type": "linear", "factor": 0.5}})",
       "the RoPE scaling's factor is 0.5: expected a number from 1 to 1000000."},
      {llama(), R"({"rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 32}})",
       "rope_scaling.original_max_position_embeddings is 32: not supported with dynamic."},
      {llama(), R"({"rope_scaling": {"type": "dynamic", "factor": 2}, "head_dim": 2})",
       "heads of 2 elements do not work with dynamic RoPE scaling: expected more than 2."},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "low_freq_factor": 1}})",
       "rope_scaling.low_freq_factor is 1: not supported with yarn."},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn"}})", "rope_scaling.factor is null: expected a number."},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}})",
       "rope_scaling.truncate is 1: expected true or false."},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0}})",
       "the RoPE scaling's attention_factor is 0: expected a number from 1e-06 to 1000000."},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1})",
       "rope_theta is 1: expected more than 1 with yarn scaling."},
      {llama(), R"({"rope_scaling": {"rope_type": "default", "type": "linear"}})", "rope_scaling is {"},
      {llama(), R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})", "rope_scaling is {"},
      {llama(), R"({"rope_scaling": 2})", "rope_scaling is 2: not supported"},
      {llama(), R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})", "rope_parameters is {"},
      {llama(), R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}})", "rope_parameters is {"},
      {llama(), R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}})",
       R"(rope_theta is 500000.0: it contradicts rope_parameters, which is {"rope_theta":10000.0}.)"},
      {llama(), R"({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e4}})",
       R"(rope_scaling is {"type":"default"}: it contradicts rope_parameters)"},
      // transformers reads rope_scaling, whose theta is 10000 in the first two files and 700 in the last one.
      {llama(), R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0},
          "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}})",
       R"(rope_scaling is {"rope_type":"linear","factor":2.0}: it contradicts rope_parameters)"},
      {llama(), R"({"rope_scaling": {"rope_type": "default"},
          "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}})",
       R"(rope_scaling is {"rope_type":"default"}: it contradicts rope_parameters)"},
      {llama(), R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
          "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}})",
       R"(rope_scaling is {"rope_type":"linear","factor":2.0,"rope_theta":700.0}: it contradicts rope_parameters)"},
      {llama(), R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})",
       "rope_scaling.low_freq_factor is null: expected a number."},
      {llama(), R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
          "original_max_position_embeddings": 64}})",
       "the RoPE scaling's high_freq_factor 4 is not above the RoPE scaling's low_freq_factor 4: change one of them."},
      {llama(), R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 64, "attention_factor": 2}})",
       "rope_scaling.attention_factor is 2: not supported with llama3."},
      {llama(), R"({"original_max_position_embeddings": 32, "rope_scaling": {"rope_type": "llama3", "factor": 8,
          "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}})",
       "original_max_position_embeddings is 32: it contradicts rope_scaling"},
  });
}

TEST(ModelConfig, AliasesOfAKeyMustAgreeWithIt) {
  EXPECT_EQ(refusal(changed(gpt2(), R"({"num_attention_heads": 4, "hidden_size": 32})").dump()), "accepted");
  EXPECT_EQ(refusal(changed(gpt2(), R"({"num_attention_heads": 8})").dump()),
            "config.json: num_attention_heads is 8: it contradicts n_head, which is 4.");
  EXPECT_EQ(refusal(changed(llama(), R"({"is_causal": false})").dump()),
            "config.json: is_causal is false: not supported (only true, null).");
  const char* both = R"({"rope_scaling": {"rope_type": "default"}, "rope_theta": 1000.0,
                         "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}})";
  EXPECT_EQ(refusal(changed(llama(), both).dump()), "accepted");
}

/// transformers does not train the embedding of pad_token_id. Aliquot does, and reports the difference.
TEST(ModelConfig, APaddingTokenIsReported) {
  const ModelConfig padded = parsed(changed(llama(), R"({"pad_token_id": 5})"));
  ASSERT_EQ(padded.remarks.size(), 1u);
  EXPECT_NE(padded.remarks.front().find("pad_token_id is 5: in transformers, this row"), std::string::npos);
  EXPECT_TRUE(parsed(changed(llama(), R"({"pad_token_id": null})")).remarks.empty());
  EXPECT_TRUE(parsed(changed(gpt2(), R"({"pad_token_id": 5})")).remarks.empty());
}

TEST(ModelConfig, TypesAndRangesAreChecked) {
  const auto expect = [](const Json& base, const char* change, const char* sentence) {
    EXPECT_EQ(refusal(changed(base, change).dump()), std::string("config.json: ") + sentence) << change;
  };
  expect(gpt2(), R"({"n_layer": "2"})", R"(n_layer is "2": expected an integer from 1 to 4096.)");
  expect(gpt2(), R"({"n_layer": 2.0})", "n_layer is 2.0: expected an integer from 1 to 4096.");
  expect(gpt2(), R"({"n_layer": 0})", "n_layer is 0: expected an integer from 1 to 4096.");
  expect(gpt2(), R"({"n_layer": -1})", "n_layer is -1: expected an integer from 1 to 4096.");
  expect(gpt2(), R"({"n_layer": null})", "n_layer is null: expected an integer from 1 to 4096.");
  expect(gpt2(), R"({"n_layer": 18446744073709551615})",
         "n_layer is 18446744073709551615: expected an integer from 1 to 4096.");
  expect(gpt2(), R"({"n_layer": "absent"})", "n_layer is missing.");
  expect(gpt2(), R"({"n_embd": 1048577})", "n_embd is 1048577: expected an integer from 1 to 1048576.");
  expect(gpt2(), R"({"vocab_size": 16777217})", "vocab_size is 16777217: expected an integer from 1 to 16777216.");
  expect(gpt2(), R"({"n_head": 5})", "n_embd 32 is not a multiple of n_head 5: change one of them.");
  expect(gpt2(), R"({"layer_norm_epsilon": "x"})", R"(layer_norm_epsilon is "x": expected a number.)");
  expect(gpt2(), R"({"layer_norm_epsilon": 0})", "layer_norm_epsilon is 0: expected a number from 1e-30 to 1.");
  expect(gpt2(), R"({"attn_pdrop": "x"})", R"(attn_pdrop is "x": expected a number.)");
  expect(llama(), R"({"num_key_value_heads": 3})",
         "num_attention_heads 4 is not a multiple of num_key_value_heads 3: change one of them.");
  expect(llama(), R"({"rope_theta": -5})", "rope_theta is -5: expected a number from 1 to 1e+30.");
  expect(llama(), R"({"tie_word_embeddings": 1})", "tie_word_embeddings is 1: expected true or false.");
  expect(llama(), R"({"hidden_size": 36, "num_attention_heads": 12, "num_key_value_heads": 12})",
         "hidden_size 36 and num_attention_heads 12 give a head width of 3, but rotary position embedding needs "
         "an even one: change one of them.");
}

TEST(ModelConfig, InvalidFilesAreRejected) {
  EXPECT_EQ(refusal(""), "config.json: the file is not JSON.");
  EXPECT_EQ(refusal("[1]"), "config.json: the file is not a JSON object.");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "model_type": "llama"})"),
            "config.json: the file has a duplicate key in an object.");
  EXPECT_EQ(refusal(R"({"layer_norm_epsilon": 1e999})"),
            "config.json: the file has a number that does not fit in a double.");
  EXPECT_EQ(refusal(R"({"rope_theta": NaN})"), "config.json: the file is not JSON.");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  EXPECT_EQ(refusal(deep), "config.json: the file is nested too deeply.");
  EXPECT_LT(refusal(R"({"model_type": ")" + std::string(1'000'000, 'x') + "\"}").size(), 1000u);
}

TEST(ModelConfig, UnknownKeysAreReported) {
  const ModelConfig config = parsed(changed(llama(), R"({"my_own": 1, "tab\there": 2})"));
  EXPECT_EQ(config.remarks,
            (std::vector<std::string>{"config.json: unknown keys of model_type llama are ignored: my_own, tab?here."}));
}

TEST(ModelConfig, FilesAreFoundBesideWeightsAndMustBeRegularFiles) {
  const TemporaryDirectory folder;
  EXPECT_FALSE(find_config_near(folder.path()));
  write_file(folder.path() / "config.json", gpt2().dump());
  EXPECT_EQ(find_config_near(folder.path()), folder.path() / "config.json");
  EXPECT_EQ(find_config_near(folder.path() / "model.safetensors"), folder.path() / "config.json");
  EXPECT_EQ(read_model_config(folder.path() / "config.json").shape.layers, 2);
  std::filesystem::create_symlink("config.json",
                                  folder.path() / "link.json");  // as in the download cache of huggingface_hub
  EXPECT_EQ(read_model_config(folder.path() / "link.json").shape.layers, 2);
  ASSERT_EQ(mkfifo((folder.path() / "pipe.json").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string socket_path = folder.path() / "socket.json";
  ASSERT_LT(socket_path.copy(address.sun_path, sizeof address.sun_path - 1), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(socket);
  EXPECT_THROW(read_model_config(socket_path), UsageError);
  write_file(folder.path() / "large.json", "");
  std::filesystem::resize_file(folder.path() / "large.json", (int64_t{16} << 20) + 1);
  for (const auto& [name, why] :
       {std::pair{"pipe.json", "it is not a regular file."}, std::pair{"large.json", "it is larger than 16 MiB."},
        std::pair{"none.json", "No such file or directory."}}) {
    const std::string path = folder.path() / name;
    try {
      read_model_config(path);
      FAIL() << "the reader accepted " << name;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), path + ": " + why);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
