#include "apps/models/hugging_face/rope_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <span>

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOriginalContext = "original_max_position_embeddings";

constexpr double kDefaultTheta = 10000;

/// Whether rope_scaling (`older`) and rope_parameters (`newer`) define the same rotation. Ignores the order of keys. An
/// object without rope_theta has the outer one. transformers reads rope_scaling if both keys exist.
bool same_scaling(const Json& older, const Json& newer, const Json& outer_theta) {
  const auto complete = [&](const Json& json) {
    nlohmann::json copy = nlohmann::json::parse(json.dump());
    if (!copy.is_object() || copy.contains("rope_theta")) return copy;
    if (outer_theta.is_null()) {
      copy["rope_theta"] = kDefaultTheta;
    } else {
      copy["rope_theta"] = outer_theta;
    }
    return copy;
  };
  return complete(older) == complete(newer);
}

constexpr std::array kFactorParts{"factor"};
constexpr std::array kLlama3Parts{"factor", "low_freq_factor", "high_freq_factor", kOriginalContext};
constexpr std::array kYarnParts{"factor", "attention_factor", "beta_fast", "beta_slow",
                                "mscale", "mscale_all_dim",   "truncate",  kOriginalContext};

struct ScalingType {
  RopeScaling scaling;
  std::span<const char* const> parts;  // keys that transformers reads, in addition to type and theta
};
constexpr std::array kScalingTypes = {
    ScalingType{RopeScaling::kLinear, kFactorParts},
    ScalingType{RopeScaling::kDynamic, kFactorParts},
    ScalingType{RopeScaling::kLlama3, kLlama3Parts},
    ScalingType{RopeScaling::kYarn, kYarnParts},
};

/// The object rope_scaling or rope_parameters, whose name is `key`.
class ScalingReader {
 public:
  ScalingReader(const ConfigValues& values, std::string_view key, const Json& scaling)
      : values_(values), key_(key), scaling_(scaling) {}

  Json part(const char* name) const { return scaling_.is_null() ? Json() : scaling_.value(name, Json()); }
  [[noreturn]] void refuse_type() const {
    values_.refuse(key_, scaling_, R"(not supported (only null, "default", "linear", "dynamic", "llama3", "yarn"))");
  }
  /// Returns the type of the scaling, or null. Older files name it `type`.
  Json type() const {
    const Json older = part("type"), newer = part("rope_type");
    if (!older.is_null() && !newer.is_null() && older != newer) refuse_type();
    return newer.is_null() ? older : newer;
  }
  void check_plain() const;
  void read(const ScalingType& type, int64_t context, Rope& rope) const;

 private:
  std::string name_of(const char* name) const { return fmt::format("{}.{}", key_, name); }
  double number(const char* name) const { return values_.real(name_of(name), part(name)); }
  /// Like transformers, returns `otherwise` if the number is missing, null or 0.
  double number(const char* name, double otherwise) const {
    const double found = part(name).is_null() ? 0 : number(name);
    return found == 0 ? otherwise : found;
  }
  void check_parts(const ScalingType& type) const;
  /// `otherwise` is the value if the key is missing or null.
  int64_t original_context(std::optional<int64_t> otherwise) const;
  void read_yarn(int64_t context, Rope& rope) const;

  const ConfigValues& values_;
  std::string_view key_;
  const Json& scaling_;
};

bool is_whole_head(const std::string& name, const Json& part) { return name == "partial_rotary_factor" && part == 1; }

/// Expects a scaling that has no effect.
void ScalingReader::check_plain() const {
  for (const auto& [name, part] : scaling_.items()) {
    const bool is_plain = name == "rope_theta" || ((name == "type" || name == "rope_type") && part == "default") ||
                          is_whole_head(name, part);
    if (!is_plain && !part.is_null()) refuse_type();
  }
}

void ScalingReader::check_parts(const ScalingType& type) const {
  for (const auto& [name, part] : scaling_.items()) {
    const bool is_common = name == "type" || name == "rope_type" || name == "rope_theta" || is_whole_head(name, part);
    if (part.is_null() || is_common || std::ranges::find(type.parts, name) != type.parts.end()) continue;
    values_.refuse(fmt::format("{}.{}", key_, shortened(name)), part,
                   fmt::format("not supported with {}", aliquot::name(type.scaling)));
  }
}

int64_t ScalingReader::original_context(std::optional<int64_t> otherwise) const {
  const Json inner = part(kOriginalContext), &outer = values_.value(kOriginalContext);
  if (!outer.is_null() && !inner.is_null() && outer != inner)
    values_.refuse(kOriginalContext, outer, fmt::format("it contradicts {}, which is {}", key_, json_text(scaling_)));
  const Json& given = inner.is_null() ? outer : inner;
  if (given.is_null() && otherwise) return *otherwise;
  return values_.integer(name_of(kOriginalContext), given, 1, kLargestCount);
}

/// The factor of cosines and sines that transformers computes from mscale.
double yarn_attention(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

void ScalingReader::read_yarn(int64_t context, Rope& rope) const {
  rope.original_context = original_context(context);
  rope.factor = scaling_.contains("factor") && part("factor").is_null()
                    ? static_cast<double>(context) / static_cast<double>(rope.original_context)
                    : number("factor");
  rope.beta_fast = number("beta_fast", rope.beta_fast);
  rope.beta_slow = number("beta_slow", rope.beta_slow);
  const double mscale = number("mscale", 0), of_all = number("mscale_all_dim", 0);
  const bool has_both = mscale != 0 && of_all != 0;
  if (!part("attention_factor").is_null()) {
    rope.attention_factor = number("attention_factor");
  } else if (has_both) {
    rope.attention_factor = yarn_attention(rope.factor, mscale) / yarn_attention(rope.factor, of_all);
  } else {
    rope.attention_factor = yarn_attention(rope.factor, 1);
  }
  const Json truncate = scaling_.value("truncate", Json(true));
  if (!truncate.is_boolean()) values_.refuse(name_of("truncate"), truncate, "expected true or false");
  rope.truncate = truncate.get<bool>();
}

void ScalingReader::read(const ScalingType& type, int64_t context, Rope& rope) const {
  check_parts(type);
  rope.scaling = type.scaling;
  if (type.scaling == RopeScaling::kYarn) return read_yarn(context, rope);
  rope.factor = number("factor");
  if (type.scaling != RopeScaling::kLlama3) return;
  rope.low_freq_factor = number("low_freq_factor");
  rope.high_freq_factor = number("high_freq_factor");
  rope.original_context = original_context({});
}

}  // namespace

Rope read_rope(const ConfigValues& values, int64_t context) {
  const Json &older = values.value("rope_scaling"), &newer = values.value("rope_parameters");
  const Json& outer_theta = values.value("rope_theta");
  if (!older.empty() && !newer.is_null() && !same_scaling(older, newer, outer_theta))
    values.refuse("rope_scaling", older, fmt::format("it contradicts rope_parameters, which is {}", json_text(newer)));
  const std::string_view key = newer.is_null() ? "rope_scaling" : "rope_parameters";
  const Json& scaling = newer.is_null() ? older : newer;
  const ScalingReader reader(values, key, scaling);
  if (!scaling.is_null() && !scaling.is_object()) reader.refuse_type();

  Json theta = reader.part("rope_theta");
  if (!theta.is_null() && !outer_theta.is_null() && theta != outer_theta)
    values.refuse("rope_theta", outer_theta, fmt::format("it contradicts {}, which is {}", key, json_text(scaling)));
  if (theta.is_null()) theta = outer_theta;
  Rope rope{.theta = theta.is_null() ? kDefaultTheta : values.real("rope_theta", theta)};
  if (scaling.is_null()) return rope;

  const Json type = reader.type();
  for (const ScalingType& known : kScalingTypes) {
    if (type == name(known.scaling)) {
      reader.read(known, context, rope);
      return rope;
    }
  }
  reader.check_plain();
  return rope;
}

}  // namespace aliquot
