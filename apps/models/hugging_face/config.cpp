#include "apps/models/hugging_face/config.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/models/hugging_face/keys.h"
#include "checkpoint/file/manifest_json.h"
#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

// These limits exceed every known model and are low enough that sizes in bytes cannot overflow.
constexpr int64_t kMostLayers = 4096, kLargestWidth = int64_t{1} << 20, kLargestCount = int64_t{1} << 24;

std::string shortened(const std::string& text) {
  constexpr size_t kShown = 200;
  return printable(text.size() > kShown ? text.substr(0, kShown) + "..." : text);
}

/// The JSON text of a value, shortened and printable.
std::string text_of(const Json& value) { return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

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
  const std::string found = json.contains("model_type") ? "is " + text_of(json["model_type"]) : "is missing";
  throw UsageError(fmt::format("{}: model_type {}: not supported (only {}).", where, found, fmt::join(types, ", ")));
}

/// Whether rope_scaling (`older`) and rope_parameters (`newer`) are equal. Ignores the order of keys. Ignores
/// rope_theta, which only rope_parameters may contain.
bool same_scaling(const Json& older, const Json& newer) {
  const auto unordered = [](const Json& json) {
    nlohmann::json copy = nlohmann::json::parse(json.dump());
    if (copy.is_object()) copy.erase("rope_theta");
    return copy;
  };
  return unordered(older) == unordered(newer);
}

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& where)
      : json_(json), where_(where), family_(family_of(json, where)) {}

  ModelConfig read() {
    check_keys();
    check_architectures();
    ModelConfig config{.shape = shape(), .names = family_.names, .remarks = std::move(remarks_)};
    try {
      check(config.shape, family_.names);
    } catch (const UsageError& error) {
      throw UsageError(where_ + ": " + error.what());
    }
    return config;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const Json& value, const std::string& why) const {
    throw UsageError(fmt::format("{}: {} is {}: {}.", where_, key, text_of(value), why));
  }
  /// Returns the value of the key, or a JSON null if the key is missing.
  const Json& value(std::string_view key) const {
    static const Json null;
    const auto found = json_.find(std::string(key));
    return found == json_.end() ? null : *found;
  }

  int64_t integer(std::string_view key, const Json& value, int64_t most) const;
  int64_t extent(std::string_view key, int64_t most) const;
  int64_t width(std::string_view key) const { return extent(key, kLargestWidth); }
  int64_t width(std::string_view key, int64_t otherwise) const { return value(key).is_null() ? otherwise : width(key); }
  double real(std::string_view key, const Json& value) const;
  bool flag(std::string_view key, bool otherwise) const;

  void check_keys();
  void check_only(const ConfigKey& key, const Json& value) const;
  void check_architectures() const;
  void refuse_sliding_windows() const;
  void refuse_other_head_width(const ModelShape& shape) const;
  ModelShape shape() const;
  Rope rope() const;
  Rope llama3(std::string_view key, const Json& scaling, double theta) const;

  const Json& json_;
  const std::string& where_;
  const ConfigFamily& family_;
  std::vector<std::string> remarks_;
};

int64_t ConfigReader::integer(std::string_view key, const Json& value, int64_t most) const {
  const bool is_whole = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most);
  if (is_whole && value.get<int64_t>() >= 1) return value.get<int64_t>();
  refuse(key, value, fmt::format("expected an integer from 1 to {}", most));
}

int64_t ConfigReader::extent(std::string_view key, int64_t most) const {
  if (!json_.contains(std::string(key))) throw UsageError(fmt::format("{}: {} is missing.", where_, key));
  return integer(key, value(key), most);
}

double ConfigReader::real(std::string_view key, const Json& value) const {
  if (!value.is_number()) refuse(key, value, "expected a number");
  return value.get<double>();
}

bool ConfigReader::flag(std::string_view key, bool otherwise) const {
  const Json& found = value(key);
  if (found.is_null()) return otherwise;
  if (!found.is_boolean()) refuse(key, found, "expected true or false");
  return found.get<bool>();
}

void ConfigReader::check_only(const ConfigKey& key, const Json& value) const {
  const std::vector<std::string> supported = words_of(key.supported);
  if (std::ranges::any_of(supported, [&](const std::string& text) { return Json::parse(text) == value; })) return;
  refuse(key.name, value, fmt::format("not supported (only {})", fmt::join(supported, ", ")));
}

void ConfigReader::check_keys() {
  std::vector<std::string> dropouts, unknown;
  for (const auto& [name, value] : json_.items()) {
    const ConfigKey* key = find_config_key(family_, name);
    if (key == nullptr) {
      unknown.push_back(shortened(name));
    } else if (key->use == ConfigKeyUse::kFixed) {
      check_only(*key, value);
    } else if (key->use == ConfigKeyUse::kAlias && value != this->value(key->supported)) {
      refuse(name, value,
             fmt::format("it contradicts {}, which is {}", key->supported, text_of(this->value(key->supported))));
    } else if (key->use == ConfigKeyUse::kPadding && !value.is_null()) {
      remarks_.push_back(
          fmt::format("{}: {} is {}: in transformers, this row of the embedding has no gradient as input; aliquot "
                      "trains it like any other row.",
                      where_, name, text_of(value)));
    } else if (key->use == ConfigKeyUse::kDropout && !value.is_null() && real(name, value) != 0) {
      dropouts.push_back(fmt::format("{} {}", name, text_of(value)));
    }
  }
  if (!dropouts.empty())
    remarks_.push_back(
        fmt::format("{}: {}: dropout is not supported, training uses 0.", where_, fmt::join(dropouts, ", ")));
  constexpr size_t kNamed = 8;
  const size_t more = unknown.size() > kNamed ? unknown.size() - kNamed : 0;
  unknown.resize(unknown.size() - more);
  if (!unknown.empty())
    remarks_.push_back(fmt::format("{}: unknown keys of model_type {} are ignored: {}{}.", where_, family_.model_type,
                                   fmt::join(unknown, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
}

void ConfigReader::check_architectures() const {
  const Json& found = value("architectures");
  if (found.is_null()) return;
  const std::vector<std::string> supported = words_of(family_.architectures);
  const auto is_supported = [&](const Json& one) {
    return one.is_string() && std::ranges::find(supported, one.get<std::string>()) != supported.end();
  };
  if (found.is_array() && std::ranges::all_of(found, is_supported)) return;
  refuse("architectures", found, fmt::format("not supported (only {})", fmt::join(supported, ", ")));
}

/// transformers' Llama has no sliding window, so a file that sets one was made for another model.
void ConfigReader::refuse_sliding_windows() const {
  const Json &window = value("sliding_window"), &layers = value("layer_types");
  if (!window.is_null() && flag("use_sliding_window", true))
    refuse("sliding_window", window, "not supported (only null, or use_sliding_window false)");
  if (layers.is_null()) return;
  const bool all_full =
      layers.is_array() && std::ranges::all_of(layers, [](const Json& type) { return type == "full_attention"; });
  if (!all_full) refuse("layer_types", layers, "not supported (only \"full_attention\" in every layer)");
}

void ConfigReader::refuse_other_head_width(const ModelShape& shape) const {
  if (value("head_dim").is_null() || shape.width % shape.heads != 0) return;
  const int64_t given = width("head_dim");
  if (given == shape.head_width()) return;
  refuse("head_dim", value("head_dim"),
         fmt::format("not supported (only {} / {}, which is {})", family_.names.width, family_.names.heads,
                     shape.head_width()));
}

ModelShape ConfigReader::shape() const {
  const ShapeNames& keys = family_.names;
  ModelShape shape{.family = family_.family};
  shape.layers = extent(keys.layers, kMostLayers);
  shape.width = width(keys.width);
  shape.heads = width(keys.heads);
  shape.context = extent(keys.context, kLargestCount);
  shape.vocabulary = extent(keys.vocabulary, kLargestCount);
  const bool is_llama = shape.family == ModelFamily::kLlama;
  shape.kv_heads = is_llama ? width(keys.kv_heads, shape.heads) : shape.heads;
  shape.hidden = is_llama ? width(keys.hidden) : width(keys.hidden, 4 * shape.width);
  shape.tied = flag("tie_word_embeddings", !is_llama);
  const std::string epsilon(keys.norm_epsilon);
  const double usual_epsilon = is_llama ? 1e-6 : 1e-5;
  shape.norm_epsilon = json_.contains(epsilon) ? real(epsilon, value(epsilon)) : usual_epsilon;
  if (!is_llama) {
    if (!shape.tied) refuse("tie_word_embeddings", false, "not supported (only true)");
    return shape;
  }
  refuse_sliding_windows();
  refuse_other_head_width(shape);
  shape.rope = rope();
  return shape;
}

/// transformers 5 writes rope_parameters, and earlier versions write rope_theta and rope_scaling. A file may have both
/// forms if they agree.
Rope ConfigReader::rope() const {
  const Json &older = value("rope_scaling"), &newer = value("rope_parameters");
  if (!older.is_null() && !newer.is_null() && !same_scaling(older, newer))
    refuse("rope_scaling", older, fmt::format("it contradicts rope_parameters, which is {}", text_of(newer)));
  const std::string_view key = newer.is_null() ? "rope_scaling" : "rope_parameters";
  const Json& scaling = newer.is_null() ? older : newer;
  const auto unsupported = [&]() { refuse(key, scaling, R"(not supported (only null, "default", "llama3"))"); };
  if (!scaling.is_null() && !scaling.is_object()) unsupported();
  const auto inside = [&](const char* name) { return scaling.is_null() ? Json() : scaling.value(name, Json()); };

  Json theta = inside("rope_theta");
  const Json& outer_theta = value("rope_theta");
  if (!theta.is_null() && !outer_theta.is_null() && theta != outer_theta)
    refuse("rope_theta", outer_theta, fmt::format("it contradicts {}, which is {}", key, text_of(scaling)));
  if (theta.is_null()) theta = outer_theta;
  Rope rope{.theta = theta.is_null() ? 10000 : real("rope_theta", theta)};
  if (scaling.is_null()) return rope;

  const Json type = inside("rope_type").is_null() ? inside("type") : inside("rope_type");
  if (!inside("type").is_null() && inside("type") != type) unsupported();
  if (type == "llama3") return llama3(key, scaling, rope.theta);
  for (const auto& [name, part] : scaling.items()) {
    const bool is_plain = name == "rope_theta" || ((name == "type" || name == "rope_type") && part == "default") ||
                          (name == "partial_rotary_factor" && part == 1);
    if (!is_plain && !part.is_null()) unsupported();
  }
  return rope;
}

Rope ConfigReader::llama3(std::string_view key, const Json& scaling, double theta) const {
  for (const auto& [name, part] : scaling.items()) {
    constexpr std::array kKnown{"type",
                                "rope_type",
                                "rope_theta",
                                "factor",
                                "low_freq_factor",
                                "high_freq_factor",
                                "original_max_position_embeddings"};
    const bool is_whole_head = name == "partial_rotary_factor" && part == 1;
    if (part.is_null() || is_whole_head || std::ranges::find(kKnown, name) != kKnown.end()) continue;
    refuse(fmt::format("{}.{}", key, shortened(name)), part, "not supported with llama3");
  }
  const auto number = [&](const char* name) {
    return real(fmt::format("{}.{}", key, name), scaling.value(name, Json()));
  };
  Rope rope{.theta = theta, .scaling = RopeScaling::kLlama3, .factor = number("factor")};
  rope.low_freq_factor = number("low_freq_factor");
  rope.high_freq_factor = number("high_freq_factor");
  const char* context = "original_max_position_embeddings";
  const Json inner = scaling.value(context, Json()), &outer = value(context);
  if (!outer.is_null() && !inner.is_null() && outer != inner)
    refuse(context, outer, fmt::format("it contradicts {}, which is {}", key, text_of(scaling)));
  const Json& given = inner.is_null() ? outer : inner;
  rope.original_context = integer(fmt::format("{}.{}", key, context), given, kLargestCount);
  return rope;
}

}  // namespace

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
