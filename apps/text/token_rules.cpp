#include "apps/text/token_rules.h"

#include <utility>

#include "apps/text/json_field.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;

/// Returns the object `field` without the keys whose value is null or that of `defaults`.
Json without_defaults(const JsonField& field, const Json& defaults) {
  field.require(field.json().is_object(), "expected an object");
  Json kept = Json::object();
  for (const auto& [key, value] : field.json().items()) {
    const auto found = defaults.find(key);
    if (!value.is_null() && (found == defaults.end() || *found != value)) kept[key] = value;
  }
  return kept;
}

/// Returns merges as pairs of tokens. Files of earlier versions have "a b" in place of ["a", "b"].
Json pairs_of(const JsonField& merges) {
  merges.require(merges.json().is_array(), "expected an array");
  Json pairs = merges.json();
  for (Json& merge : pairs) {
    if (!merge.is_string()) continue;
    const std::string both = merge.get<std::string>();
    const size_t blank = both.find(' ');
    if (blank != std::string::npos) merge = {both.substr(0, blank), both.substr(blank + 1)};
  }
  return pairs;
}

Json model_rules(const JsonField& model) {
  static const Json defaults{{"dropout", 0},      {"continuing_subword_prefix", ""}, {"end_of_word_suffix", ""},
                             {"fuse_unk", false}, {"byte_fallback", false},          {"ignore_merges", false}};
  Json rules = without_defaults(model, defaults);
  if (!rules.contains("type")) rules["type"] = model["vocab"].json().is_array() ? "Unigram" : "BPE";
  if (rules.contains("merges")) rules["merges"] = pairs_of(model["merges"]);
  return rules;
}

/// Returns the added tokens by their content, because their order has no effect.
Json added_rules(const JsonField& tokens) {
  static const Json defaults{{"single_word", false}, {"lstrip", false}, {"rstrip", false}};
  Json rules = Json::object();
  if (tokens.is_null()) return rules;
  tokens.for_each([&](const JsonField& token) {
    Json rule = without_defaults(token, defaults);
    rule.erase("special");
    rules[token["content"].text()] = std::move(rule);
  });
  return rules;
}

Json pre_tokenizer_rules(const JsonField& step) {
  static const Json defaults{{"ByteLevel", {{"add_prefix_space", true}, {"use_regex", true}}},
                             {"Split", {{"invert", false}}},
                             {"Digits", {{"individual_digits", false}}},
                             {"Metaspace", {{"split", true}}}};
  const std::string& type = step["type"].text();
  Json rules = without_defaults(step, defaults.value(type, Json::object()));
  if (type == "ByteLevel") rules.erase("trim_offsets");
  if (type != "Metaspace") return rules;
  // Files of earlier versions have add_prefix_space in place of prepend_scheme.
  if (!rules.contains("prepend_scheme"))
    rules["prepend_scheme"] = step["add_prefix_space"].flag(true) ? "always" : "never";
  for (const char* key : {"add_prefix_space", "str_rep"}) rules.erase(key);
  return rules;
}

/// Appends the rules of a normalizer or pre-tokenizer to `rules`. A Sequence has its parts in the list `parts`.
void add_steps(const JsonField& step, std::string_view parts, Json (*rules_of)(const JsonField&), Json& rules) {
  if (step.is_null()) return;
  if (step["type"].text() == "Sequence")
    step[parts].for_each([&](const JsonField& part) { add_steps(part, parts, rules_of, rules); });
  else
    rules.push_back(rules_of(step));
}

Json normalizer_rules(const JsonField& step) { return without_defaults(step, Json::object()); }

}  // namespace

Json token_rules(std::string_view text, const std::string& file) {
  const Json json = parse_tokenizer_json(text, file);
  const JsonField all(json, "", file);
  Json normalizers = Json::array(), pre_tokenizers = Json::array();
  add_steps(all["normalizer"], "normalizers", normalizer_rules, normalizers);
  add_steps(all["pre_tokenizer"], "pretokenizers", pre_tokenizer_rules, pre_tokenizers);
  return {{"model", model_rules(all["model"])},
          {"added_tokens", added_rules(all["added_tokens"])},
          {"normalizers", normalizers},
          {"pre_tokenizers", pre_tokenizers}};
}

}  // namespace aliquot
