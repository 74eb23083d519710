#include "apps/models/hugging_face/config.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/models/hugging_face/attention_keys.h"
#include "apps/models/hugging_face/keys.h"
#include "apps/models/hugging_face/rope_keys.h"
#include "apps/models/hugging_face/values.h"
#include "checkpoint/file/manifest_json.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

const ConfigFamily& family_of(const Json& json, const std::string& where) {
  std::vector<std::string_view> types;
  for (const ConfigFamily& family : config_families()) {
    if (json.contains("model_type") && json["model_type"] == family.model_type) return family;
    types.push_back(family.model_type);
  }
  const std::string found = json.contains("model_type") ? "is " + json_text(json["model_type"]) : "is missing";
  const std::string_view kind = json.contains("model_type") && json["model_type"].is_string()
                                    ? unsupported_kind(json["model_type"].get<std::string>())
                                    : "";
  throw UsageError(fmt::format("{}: model_type {}: not supported (only {}){}.", where, found, fmt::join(types, ", "),
                               kind.empty() ? "" : fmt::format("; {} models are not implemented", kind)));
}

constexpr std::string_view kExperts = "mixture-of-experts", kEncoder = "encoder", kRecurrent = "recurrent";

/// Parts of names, in small letters, and the kind of model. The first match counts.
constexpr std::pair<std::string_view, std::string_view> kUnsupportedKinds[] = {
    {"moe", kExperts},        {"mixtral", kExperts},    {"deepseek", kExperts}, {"gpt-oss", kExperts},
    {"gpt_oss", kExperts},    {"dbrx", kExperts},       {"grok", kExperts},     {"llama4", kExperts},
    {"llama-4", kExperts},    {"8x7b", kExperts},       {"8x22b", kExperts},    {"-a3b", kExperts},
    {"-a22b", kExperts},      {"bert", kEncoder},       {"electra", kEncoder},  {"t5", kEncoder},
    {"bart", kEncoder},       {"mamba", kRecurrent},    {"rwkv", kRecurrent},   {"gemma", "Gemma"},
    {"phi", "Phi"},           {"falcon", "Falcon"},     {"bloom", "BLOOM"},     {"opt-", "OPT"},
    {"gpt_neox", "GPT-NeoX"}, {"gpt-neox", "GPT-NeoX"}, {"pythia", "GPT-NeoX"}};

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& where) : values_(json, where), family_(family_of(json, where)) {}

  ModelConfig read() {
    check_keys();
    check_architectures();
    ModelConfig config{.shape = shape(),
                       .head_width = family_.family == ModelFamily::kLlama ? head_dim(values_, family_) : 0,
                       .names = family_.names,
                       .remarks = std::move(remarks_)};
    try {
      check(config.shape, family_.names);
    } catch (const UsageError& error) {
      throw UsageError(values_.where() + ": " + error.what());
    }
    return config;
  }

 private:
  void check_keys();
  void check_only(const ConfigKey& key, const Json& value) const;
  void check_architectures() const;
  int64_t kv_heads(int64_t heads) const;
  ModelShape shape() const;

  const ConfigValues values_;
  const ConfigFamily& family_;
  std::vector<std::string> remarks_;
};

void ConfigReader::check_only(const ConfigKey& key, const Json& value) const {
  const std::vector<std::string> supported = words_of(key.supported);
  if (std::ranges::any_of(supported, [&](const std::string& text) { return Json::parse(text) == value; })) return;
  values_.refuse(key.name, value, fmt::format("not supported (only {})", fmt::join(supported, ", ")));
}

void ConfigReader::check_keys() {
  std::vector<std::string> dropouts, unknown;
  for (const auto& [name, value] : values_.json().items()) {
    const ConfigKey* key = find_config_key(family_, name);
    if (key == nullptr) {
      unknown.push_back(shortened(name));
    } else if (key->use == ConfigKeyUse::kFixed) {
      check_only(*key, value);
    } else if (key->use == ConfigKeyUse::kAlias && value != values_.value(key->supported)) {
      values_.refuse(
          name, value,
          fmt::format("it contradicts {}, which is {}", key->supported, json_text(values_.value(key->supported))));
    } else if (key->use == ConfigKeyUse::kPadding && !value.is_null()) {
      remarks_.push_back(
          fmt::format("{}: {} is {}: in transformers, this row of the embedding has no gradient as input; aliquot "
                      "trains it like any other row.",
                      values_.where(), name, json_text(value)));
    } else if (key->use == ConfigKeyUse::kDropout && !value.is_null() && values_.real(name, value) != 0) {
      dropouts.push_back(fmt::format("{} {}", name, json_text(value)));
    }
  }
  if (!dropouts.empty())
    remarks_.push_back(
        fmt::format("{}: {}: dropout is not supported, training uses 0.", values_.where(), fmt::join(dropouts, ", ")));
  constexpr size_t kNamed = 8;
  const size_t more = unknown.size() > kNamed ? unknown.size() - kNamed : 0;
  unknown.resize(unknown.size() - more);
  if (!unknown.empty())
    remarks_.push_back(fmt::format("{}: unknown keys of model_type {} are ignored: {}{}.", values_.where(),
                                   family_.model_type, fmt::join(unknown, ", "),
                                   more > 0 ? fmt::format(" and {} more", more) : ""));
}

void ConfigReader::check_architectures() const {
  const Json& found = values_.value("architectures");
  if (found.is_null()) return;
  const std::vector<std::string> supported = words_of(family_.architectures);
  const auto is_supported = [&](const Json& one) {
    return one.is_string() && std::ranges::find(supported, one.get<std::string>()) != supported.end();
  };
  if (found.is_array() && std::ranges::all_of(found, is_supported)) return;
  values_.refuse("architectures", found, fmt::format("not supported (only {})", fmt::join(supported, ", ")));
}

int64_t ConfigReader::kv_heads(int64_t heads) const {
  const std::string_view key = family_.names.kv_heads;
  return values_.has(key) || family_.kv_heads == 0 ? values_.width(key, heads) : family_.kv_heads;
}

ModelShape ConfigReader::shape() const {
  const ShapeNames& keys = family_.names;
  ModelShape shape{.family = family_.family};
  shape.layers = values_.extent(keys.layers, kMostLayers);
  shape.width = values_.width(keys.width);
  shape.heads = values_.width(keys.heads);
  shape.context = values_.extent(keys.context, kLargestCount);
  shape.vocabulary = values_.extent(keys.vocabulary, kLargestCount);
  const bool is_llama = shape.family == ModelFamily::kLlama;
  shape.kv_heads = is_llama ? kv_heads(shape.heads) : shape.heads;
  shape.hidden = is_llama ? values_.width(keys.hidden) : values_.width(keys.hidden, 4 * shape.width);
  shape.tied = values_.flag("tie_word_embeddings", !is_llama);
  const double usual_epsilon = is_llama ? 1e-6 : 1e-5;
  shape.norm_epsilon = values_.has(keys.norm_epsilon)
                           ? values_.real(keys.norm_epsilon, values_.value(keys.norm_epsilon))
                           : usual_epsilon;
  if (!is_llama) return shape;
  read_attention(values_, family_, shape);
  shape.rope = read_rope(values_, shape.context);
  return shape;
}

}  // namespace

std::string_view unsupported_kind(std::string_view name) {
  std::string small(name);
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto is_digit = [&small](size_t at) { return at < small.size() && small[at] >= '0' && small[at] <= '9'; };
  for (const auto& [part, kind] : kUnsupportedKinds) {
    const size_t at = small.find(part);
    if (at == std::string::npos) continue;
    // llama-405b is not a size of Llama 4.
    if (is_digit(at + part.size() - 1) && is_digit(at + part.size())) continue;
    return kind;
  }
  return "";
}

ModelConfig parse_model_config(std::string_view text, const std::string& where) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const ManifestFormatError& defect) {
    throw UsageError(fmt::format("{}: the file {}.", where, defect.what()));
  } catch (const Json::out_of_range&) {
    throw UsageError(fmt::format("{}: the file has a number that does not fit in a double.", where));
  }
  return ConfigReader(json, where).read();
}

}  // namespace aliquot
