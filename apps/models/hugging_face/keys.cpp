#include "apps/models/hugging_face/keys.h"

#include <algorithm>
#include <array>

namespace aliquot {
namespace {

using enum ConfigKeyUse;

/// Keys of all model types. The ignored keys concern the tokenizer, text generation, heads other than the language
/// model's, or execution in transformers. aliquot replaces some with flags: --precision for dtype, --seed for initial
/// weights.
constexpr auto kCommonKeys = std::to_array<ConfigKey>({
    {"model_type", kRead},
    {"architectures", kRead},
    {"vocab_size", kRead},
    {"tie_word_embeddings", kRead},
    {"auto_map", kFixed, "null"},
    {"quantization_config", kFixed, "null"},
    {"is_encoder_decoder", kFixed, "false null"},
    {"tie_encoder_decoder", kFixed, "false null"},
    {"add_cross_attention", kFixed, "false null"},
    {"pruned_heads", kFixed, "{} null"},
    {"is_causal", kFixed, "true null"},
    {"_attn_implementation", kIgnored},
    {"_attn_implementation_autoset", kIgnored},
    {"_name_or_path", kIgnored},
    {"attn_implementation", kIgnored},
    {"bad_words_ids", kIgnored},
    {"begin_suppress_tokens", kIgnored},
    {"bos_token_id", kIgnored},
    {"chunk_size_feed_forward", kIgnored},  // splits rows; the result is the same
    {"cross_attention_hidden_size", kIgnored},
    {"decoder_start_token_id", kIgnored},
    {"diversity_penalty", kIgnored},
    {"do_sample", kIgnored},
    {"dtype", kIgnored},
    {"early_stopping", kIgnored},
    {"encoder_no_repeat_ngram_size", kIgnored},
    {"eos_token_id", kIgnored},
    {"exponential_decay_length_penalty", kIgnored},
    {"finetuning_task", kIgnored},
    {"forced_bos_token_id", kIgnored},
    {"forced_eos_token_id", kIgnored},
    {"gradient_checkpointing", kIgnored},
    {"id2label", kIgnored},
    {"initializer_range", kIgnored},
    {"is_decoder", kIgnored},
    {"label2id", kIgnored},
    {"length_penalty", kIgnored},
    {"max_length", kIgnored},
    {"min_length", kIgnored},
    {"no_repeat_ngram_size", kIgnored},
    {"num_beam_groups", kIgnored},
    {"num_beams", kIgnored},
    {"num_labels", kIgnored},
    {"num_return_sequences", kIgnored},
    {"output_attentions", kIgnored},
    {"output_hidden_states", kIgnored},
    {"output_scores", kIgnored},
    {"prefix", kIgnored},
    {"pretraining_tp", kIgnored},  // splits matrix products; the result is the same
    {"problem_type", kIgnored},
    {"remove_invalid_values", kIgnored},
    {"repetition_penalty", kIgnored},
    {"return_dict", kIgnored},
    {"return_dict_in_generate", kIgnored},
    {"sep_token_id", kIgnored},
    {"suppress_tokens", kIgnored},
    {"task_specific_params", kIgnored},
    {"temperature", kIgnored},
    {"tf_legacy_loss", kIgnored},
    {"tokenizer_class", kIgnored},
    {"top_k", kIgnored},
    {"top_p", kIgnored},
    {"torch_dtype", kIgnored},
    {"torchscript", kIgnored},
    {"transformers_version", kIgnored},
    {"typical_p", kIgnored},
    {"unk_token_id", kIgnored},
    {"use_bfloat16", kIgnored},
    {"use_cache", kIgnored},
});

constexpr auto kGpt2Keys = std::to_array<ConfigKey>({
    {"n_layer", kRead},
    {"n_embd", kRead},
    {"n_head", kRead},
    {"n_inner", kRead},
    {"num_hidden_layers", kAlias, "n_layer"},
    {"hidden_size", kAlias, "n_embd"},
    {"num_attention_heads", kAlias, "n_head"},
    {"max_position_embeddings", kAlias, "n_positions"},
    {"pad_token_id", kIgnored},  // transformers' GPT-2 has no padding row in its embedding
    {"n_positions", kRead},
    {"layer_norm_epsilon", kRead},
    // The four values are names of one function, the tanh approximation of GELU.
    {"activation_function", kFixed, R"("gelu_new" "gelu_pytorch_tanh" "gelu_fast" "gelu_python_tanh")"},
    {"scale_attn_weights", kFixed, "true"},
    {"scale_attn_by_inverse_layer_idx", kFixed, "false"},
    {"attn_pdrop", kDropout},
    {"embd_pdrop", kDropout},
    {"resid_pdrop", kDropout},
    {"n_ctx", kIgnored},                    // older name of n_positions, which transformers does not read
    {"reorder_and_upcast_attn", kIgnored},  // affects half precision only
    {"summary_activation", kIgnored},
    {"summary_first_dropout", kIgnored},
    {"summary_hidden_size", kIgnored},
    {"summary_proj_to_labels", kIgnored},
    {"summary_type", kIgnored},
    {"summary_use_proj", kIgnored},
});

/// Keys of llama, mistral, qwen2 and qwen3.
constexpr auto kDecoderKeys = std::to_array<ConfigKey>({
    {"num_hidden_layers", kRead},
    {"hidden_size", kRead},
    {"num_attention_heads", kRead},
    {"num_key_value_heads", kRead},
    {"head_dim", kRead},
    {"pad_token_id", kPadding},
    {"intermediate_size", kRead},
    {"max_position_embeddings", kRead},
    {"rms_norm_eps", kRead},
    {"rope_theta", kRead},
    {"rope_scaling", kRead},
    {"rope_parameters", kRead},
    {"original_max_position_embeddings", kRead},
    {"sliding_window", kRead},
    {"layer_types", kRead},
    {"hidden_act", kFixed, R"("silu" "swish")"},
    {"partial_rotary_factor", kFixed, "1 null"},
    {"rope_interleaved", kFixed, "false null"},
    {"attention_dropout", kDropout},
});
constexpr auto kLlamaKeys = std::to_array<ConfigKey>({
    {"attention_bias", kRead},
    {"mlp_bias", kFixed, "false null"},
    {"use_sliding_window", kRead},
    {"max_window_layers", kIgnored},  // used with sliding windows only
});
constexpr auto kMistralKeys = std::to_array<ConfigKey>({
    {"attention_bias", kFixed, "false null"},
    {"mlp_bias", kFixed, "false null"},
    {"use_sliding_window", kFixed, "true null"},  // transformers uses sliding_window without reading this key
});
constexpr auto kQwen2Keys = std::to_array<ConfigKey>({
    {"attention_bias", kFixed, "true null"},  // transformers does not read it: the type always has these biases
    {"use_sliding_window", kRead},
    {"max_window_layers", kRead},
});
constexpr auto kQwen3Keys = std::to_array<ConfigKey>({
    {"attention_bias", kRead},
    {"use_sliding_window", kRead},
    {"max_window_layers", kRead},
});

constexpr ShapeNames kGpt2Names{
    "n_layer", "n_embd", "n_head", "n_head", "n_inner", "n_positions", "vocab_size", "layer_norm_epsilon", {}};
constexpr ShapeNames kDecoderNames{"num_hidden_layers",   "hidden_size",       "num_attention_heads",
                                   "num_key_value_heads", "intermediate_size", "max_position_embeddings",
                                   "vocab_size",          "rms_norm_eps",      "rope_theta"};

constexpr std::array kFamilies = {
    ConfigFamily{.model_type = "gpt2",
                 .family = ModelFamily::kGpt2,
                 .names = kGpt2Names,
                 .architectures = "GPT2LMHeadModel GPT2Model",
                 .keys = kGpt2Keys},
    ConfigFamily{.model_type = "llama",
                 .family = ModelFamily::kLlama,
                 .names = kDecoderNames,
                 .architectures = "LlamaForCausalLM LlamaModel",
                 .keys = kLlamaKeys,
                 .shared = kDecoderKeys,
                 .heads_divide_width = true,
                 .reads_attention_bias = true},
    ConfigFamily{.model_type = "mistral",
                 .family = ModelFamily::kLlama,
                 .names = kDecoderNames,
                 .architectures = "MistralForCausalLM MistralModel",
                 .keys = kMistralKeys,
                 .shared = kDecoderKeys,
                 .kv_heads = 8,
                 .windows = ConfigWindows::kAllLayers},
    ConfigFamily{.model_type = "qwen2",
                 .family = ModelFamily::kLlama,
                 .names = kDecoderNames,
                 .architectures = "Qwen2ForCausalLM Qwen2Model",
                 .keys = kQwen2Keys,
                 .shared = kDecoderKeys,
                 .kv_heads = 32,
                 .windows = ConfigWindows::kSomeLayers,
                 .qkv_bias = true},
    ConfigFamily{.model_type = "qwen3",
                 .family = ModelFamily::kLlama,
                 .names = kDecoderNames,
                 .architectures = "Qwen3ForCausalLM Qwen3Model",
                 .keys = kQwen3Keys,
                 .shared = kDecoderKeys,
                 .kv_heads = 32,
                 .head_width = 128,
                 .windows = ConfigWindows::kSomeLayers,
                 .reads_attention_bias = true,
                 .qk_norm = true},
};

}  // namespace

std::span<const ConfigFamily> config_families() { return kFamilies; }

const ConfigKey* find_config_key(const ConfigFamily& family, std::string_view name) {
  for (const std::span<const ConfigKey> keys : {std::span<const ConfigKey>(kCommonKeys), family.keys, family.shared}) {
    const auto found = std::ranges::find(keys, name, &ConfigKey::name);
    if (found != keys.end()) return &*found;
  }
  return nullptr;
}

}  // namespace aliquot
