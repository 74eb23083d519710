// Tests how config.json is read, and the messages for invalid and unsupported files.
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

Json llama() {
  return Json::parse(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 100})");
}

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
  for (const ModelShape& shape : shapes) {
    const ModelConfig read = parse_model_config(config_text(shape, "float32"), "config.json");
    EXPECT_EQ(read.shape, shape) << config_text(shape, "float32");
    EXPECT_TRUE(read.remarks.empty()) << read.remarks.front();
  }
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
      {gpt2(), R"({"tie_word_embeddings": false})", "tie_word_embeddings is false: not supported (only true)."},
      {gpt2(), R"({"quantization_config": {"bits": 4}})",
       R"(quantization_config is {"bits":4}: not supported (only null).)"},
      {gpt2(), R"({"auto_map": {"AutoModel": "its.Own"}})", "auto_map is {"},
      {gpt2(), R"({"pruned_heads": {"1": [0]}})", R"(pruned_heads is {"1":[0]}: not supported (only {}, null).)"},
      {gpt2(), R"({"architectures": ["GPT2ForSequenceClassification"]})",
       R"(architectures is ["GPT2ForSequenceClassification"]: not supported (only GPT2LMHeadModel, GPT2Model).)"},
      {gpt2(), R"({"model_type": "opt"})", R"(model_type is "opt": not supported (only gpt2, llama).)"},
      {gpt2(), R"({"model_type": "absent"})", "model_type is missing: not supported (only gpt2, llama)."},
  });
}

TEST(ModelConfig, UnsupportedFieldsOfLlamaAreRejectedByName) {
  expect_refusals({
      {llama(), R"({"model_type": "mistral", "sliding_window": 32})",
       R"(model_type is "mistral": not supported (only)"},
      {llama(), R"({"hidden_act": "gelu"})", R"(hidden_act is "gelu": not supported (only "silu", "swish").)"},
      {llama(), R"({"attention_bias": true})", "attention_bias is true: not supported (only false, null)."},
      {llama(), R"({"mlp_bias": true})", "mlp_bias is true: not supported (only false, null)."},
      {llama(), R"({"head_dim": 16})",
       "head_dim is 16: not supported (only hidden_size / num_attention_heads, which is 8)."},
      {llama(), R"({"sliding_window": 32})",
       "sliding_window is 32: not supported (only null, or use_sliding_window false)."},
      {llama(), R"({"layer_types": ["full_attention", "sliding_attention"]})",
       R"(layer_types is ["full_attention","sliding_attention"]: not supported (only "full_attention" in every layer).)"},
      {llama(), R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5: not supported (only 1, null)."},
  });
  EXPECT_EQ(refusal(changed(llama(), R"({"sliding_window": 32, "use_sliding_window": false})").dump()), "accepted");
}

TEST(ModelConfig, UnsupportedRopeIsRejectedByName) {
  expect_refusals({
      {llama(), R"({"rope_scaling": {"type": "linear", "factor": 2.0}})",
       R"(rope_scaling is {"type":"linear","factor":2.0}: not supported (only null, "default", "llama3").)"},
      {llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})", R"(rope_scaling is {"rope_type":"yarn")"},
      {llama(), R"({"rope_scaling": {"rope_type": "default", "type": "linear"}})", "rope_scaling is {"},
      {llama(), R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})", "rope_scaling is {"},
      {llama(), R"({"rope_scaling": 2})", "rope_scaling is 2: not supported"},
      {llama(), R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})", "rope_parameters is {"},
      {llama(), R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}})", "rope_parameters is {"},
      {llama(), R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}})",
       R"(rope_theta is 500000.0: it contradicts rope_parameters, which is {"rope_theta":10000.0}.)"},
      {llama(), R"({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e4}})",
       R"(rope_scaling is {"type":"default"}: it contradicts rope_parameters)"},
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
