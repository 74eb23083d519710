#include "apps/models/hugging_face.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kGpt2Vocabulary = 50257;  // of the tokenizer, whose last token ends a text

const std::vector<int64_t>* find(std::span<const NamedShape> parameters, const std::string& name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.first == name; });
  return found == parameters.end() ? nullptr : &found->second;
}

}  // namespace

std::optional<ModelShape> gpt2_shape_of(std::span<const NamedShape> parameters) {
  const auto *tokens = find(parameters, "wte.weight"), *positions = find(parameters, "wpe.weight"),
             *hidden = find(parameters, "h.0.mlp.c_fc.weight");
  for (const auto* each : {tokens, positions, hidden}) {
    if (each == nullptr || each->size() != 2) return std::nullopt;
  }
  ModelShape shape{.vocabulary = (*tokens)[0]};
  shape.width = (*tokens)[1];
  shape.context = (*positions)[0];
  shape.hidden = (*hidden)[1];
  while (find(parameters, "h." + std::to_string(shape.layers) + ".ln_1.weight") != nullptr) ++shape.layers;
  return shape;
}

std::optional<int64_t> preset_heads(const ModelShape& shape) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelShape& known = preset.shape;
    if (known.family == shape.family && known.layers == shape.layers && known.width == shape.width) return known.heads;
  }
  return std::nullopt;
}

std::string gpt2_config(const ModelShape& shape, std::string_view type) {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", 1e-5},
               {"n_layer", shape.layers},
               {"n_embd", shape.width},
               {"n_head", shape.heads},
               {"n_positions", shape.context},
               {"n_ctx", shape.context},
               {"vocab_size", shape.vocabulary},
               {"n_inner", shape.hidden == 4 * shape.width ? Json() : Json(shape.hidden)}};
  // There is no dropout in what was trained.
  for (const char* name : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[name] = 0.0;
  const bool has_end = shape.vocabulary == kGpt2Vocabulary;
  for (const char* name : {"bos_token_id", "eos_token_id"}) json[name] = has_end ? Json(kGpt2Vocabulary - 1) : Json();
  json["tie_word_embeddings"] = true;
  json["torch_dtype"] = type;
  return json.dump(2) + "\n";
}

}  // namespace aliquot
