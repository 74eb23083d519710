#include "apps/models/hugging_face/weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/models/hugging_face/keys.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kGpt2Vocabulary = 50257;    // tokens of GPT-2's tokenizer; the last one is end-of-text
constexpr int64_t kLlamaVocabulary = 128256;  // tokens of Llama 3's tokenizer
constexpr int64_t kLlamaBegin = 128000, kLlamaEnd = 128001;

const std::vector<int64_t>* find(std::span<const NamedShape> parameters, const std::string& name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.first == name; });
  return found == parameters.end() ? nullptr : &found->second;
}

int64_t layers_of(std::span<const NamedShape> parameters, const std::string& before, const std::string& after) {
  int64_t layers = 0;
  while (find(parameters, before + std::to_string(layers) + after) != nullptr) ++layers;
  return layers;
}

bool are_matrices(std::initializer_list<const std::vector<int64_t>*> shapes) {
  return std::ranges::all_of(shapes, [](const auto* shape) { return shape != nullptr && shape->size() == 2; });
}

std::optional<ParameterExtents> gpt2_extents_of(std::span<const NamedShape> parameters) {
  const auto *tokens = find(parameters, "wte.weight"), *positions = find(parameters, "wpe.weight"),
             *hidden = find(parameters, "h.0.mlp.c_fc.weight");
  if (!are_matrices({tokens, positions, hidden})) return std::nullopt;
  ModelShape shape{.vocabulary = (*tokens)[0]};
  shape.width = (*tokens)[1];
  shape.context = (*positions)[0];
  shape.hidden = (*hidden)[1];
  shape.layers = layers_of(parameters, "h.", ".ln_1.weight");
  shape.tied = find(parameters, "lm_head.weight") == nullptr;
  return ParameterExtents{shape, shape.width, shape.width};
}

std::optional<ParameterExtents> llama_extents_of(std::span<const NamedShape> parameters) {
  const std::string first = "model.layers.0.", attention = first + "self_attn.";
  const auto *tokens = find(parameters, "model.embed_tokens.weight"),
             *queries = find(parameters, attention + "q_proj.weight"),
             *keys = find(parameters, attention + "k_proj.weight"),
             *gate = find(parameters, first + "mlp.gate_proj.weight");
  if (!are_matrices({tokens, queries, keys, gate})) return std::nullopt;
  ModelShape shape{.family = ModelFamily::kLlama};
  shape.vocabulary = (*tokens)[0];
  shape.width = (*tokens)[1];
  shape.hidden = (*gate)[0];
  shape.layers = layers_of(parameters, "model.layers.", ".input_layernorm.weight");
  shape.tied = find(parameters, "lm_head.weight") == nullptr;
  shape.qkv_bias = find(parameters, attention + "q_proj.bias") != nullptr;
  shape.output_bias = find(parameters, attention + "o_proj.bias") != nullptr;
  shape.qk_norm = find(parameters, attention + "q_norm.weight") != nullptr;
  return ParameterExtents{shape, (*queries)[0], (*keys)[0]};
}

/// The keys that name the model type. The first class of the type is that of the language model.
Json type_keys(const ConfigFamily& family) {
  const std::string_view classes = family.architectures;
  return {{"architectures", {classes.substr(0, classes.find(' '))}}, {"model_type", family.model_type}};
}

Json gpt2_config(const ModelShape& shape) {
  Json json = {{"activation_function", "gelu_new"},
               {"layer_norm_epsilon", shape.norm_epsilon},
               {"n_layer", shape.layers},
               {"n_embd", shape.width},
               {"n_head", shape.heads},
               {"n_positions", shape.context},
               {"n_ctx", shape.context},
               {"vocab_size", shape.vocabulary},
               {"n_inner", shape.hidden == 4 * shape.width ? Json() : Json(shape.hidden)}};
  // aliquot trains without dropout, and these keys default to 0.1.
  for (const char* name : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[name] = 0.0;
  const bool has_end = shape.vocabulary == kGpt2Vocabulary;
  for (const char* name : {"bos_token_id", "eos_token_id"}) json[name] = has_end ? Json(kGpt2Vocabulary - 1) : Json();
  return json;
}

Json rope_scaling(const Rope& rope) {
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  Json json = {{"rope_type", name(rope.scaling)}, {"factor", rope.factor}};
  const bool is_llama3 = rope.scaling == RopeScaling::kLlama3, is_yarn = rope.scaling == RopeScaling::kYarn;
  if (is_llama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (is_yarn) {
    json["attention_factor"] = rope.attention_factor;
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
  }
  if (is_llama3 || is_yarn) json["original_max_position_embeddings"] = rope.original_context;
  return json;
}

/// Adds the keys of the window that the model type reads.
void add_window(const ModelShape& shape, ConfigWindows windows, Json& json) {
  if (windows == ConfigWindows::kNone) return;
  json["sliding_window"] = shape.window == 0 ? Json() : Json(shape.window);
  if (windows == ConfigWindows::kAllLayers) return;
  json["use_sliding_window"] = shape.window != 0;
  Json types = Json::array();
  int64_t full = 0;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const bool slides = shape.window_of(layer) != 0;
    types.push_back(slides ? "sliding_attention" : "full_attention");
    if (!slides && full == layer) ++full;
  }
  json["max_window_layers"] = full;
  json["layer_types"] = types;
}

Json llama_config(const ModelShape& shape, const ConfigFamily& family) {
  const bool is_published = shape.vocabulary == kLlamaVocabulary;
  Json json = {{"hidden_act", "silu"},
               {"hidden_size", shape.width},
               {"intermediate_size", shape.hidden},
               {"num_hidden_layers", shape.layers},
               {"num_attention_heads", shape.heads},
               {"num_key_value_heads", shape.kv_heads},
               {"head_dim", shape.head_width()},
               {"max_position_embeddings", shape.context},
               {"vocab_size", shape.vocabulary},
               {"rms_norm_eps", shape.norm_epsilon},
               {"rope_theta", shape.rope.theta},
               {"rope_scaling", rope_scaling(shape.rope)}};
  if (family.reads_attention_bias) json["attention_bias"] = shape.output_bias;
  if (family.model_type == "llama") json["mlp_bias"] = false;
  add_window(shape, family.windows, json);
  json["attention_dropout"] = 0.0;
  json["bos_token_id"] = is_published ? Json(kLlamaBegin) : Json();
  json["eos_token_id"] = is_published ? Json(kLlamaEnd) : Json();
  return json;
}

}  // namespace

std::optional<ParameterExtents> extents_of(std::span<const NamedShape> parameters) {
  const auto gpt2 = gpt2_extents_of(parameters);
  return gpt2 ? gpt2 : llama_extents_of(parameters);
}

const ModelShape* find_similar_preset(const ModelShape& shape) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelShape& known = preset.shape;
    const bool same_kind = known.family == shape.family && !shape.qkv_bias && !shape.qk_norm;
    if (same_kind && known.layers == shape.layers && known.width == shape.width) return &known;
  }
  return nullptr;
}

std::string config_text(const ModelShape& shape, std::string_view type) {
  const ConfigFamily& family = *std::ranges::find(config_families(), model_type(shape), &ConfigFamily::model_type);
  Json json = type_keys(family);
  json.update(shape.family == ModelFamily::kLlama ? llama_config(shape, family) : gpt2_config(shape));
  json["tie_word_embeddings"] = shape.tied;
  json["torch_dtype"] = type;
  return json.dump(2) + "\n";
}

}  // namespace aliquot
