#include "apps/options/lora_option.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "engine/options/option_table.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr IntegerRange kRankRange{1, 1 << 16};
constexpr RealRange kAlphaRange{.least = 1e-6, .most = 1e9};

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

void set_field(LoraOption& option, std::string_view key, std::string_view value) {
  if (key == "rank") {
    option.rank = parse_count(value, kRankRange);
  } else if (key == "alpha") {
    option.alpha = parse_real(value, kAlphaRange);
  } else {
    option.targets.emplace_back(value);
  }
}

/// Whether a target names a linear layer.
bool matches(std::string_view target, const ProjectionNames& names) {
  if (target == kAllLinear || target == names.word || target == names.path) return true;
  return names.path.ends_with(fmt::format(".{}", target));
}

std::string known_targets(ModelFamily family) {
  std::vector<std::string> words;
  for (const ProjectionNames& names : projections_of(family))
    words.push_back(fmt::format("{} ({})", names.word, names.path));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

LoraOption parse_lora(std::string_view text) {
  LoraOption option{.rank = 8};
  std::string_view key;
  std::set<std::string_view> keys;
  for (const std::string_view word : split_at_commas(text)) {
    const size_t equals = word.find('=');
    const bool continues = equals == std::string_view::npos && key == "targets";
    if (!continues) key = word.substr(0, equals);
    const bool is_known = key == "rank" || key == "alpha" || key == "targets";
    const std::string_view value = continues ? word : word.substr(std::min(equals, word.size() - 1) + 1);
    if (!is_known || value.empty() || (equals == std::string_view::npos && !continues)) {
      throw UsageError(fmt::format(
          "invalid value '{}': expected rank=N, alpha=X and targets=NAME,NAME,... with commas between them.", text));
    }
    if (!continues && !keys.insert(key).second)
      throw UsageError(fmt::format("invalid value '{}': {} is given twice: give it once.", text, key));
    if (key == "targets" && !continues) option.targets.clear();
    set_field(option, key, value);
  }
  return option;
}

std::string lora_text(const LoraOption& option) {
  if (option.rank == 0) return "";
  return fmt::format("rank={},alpha={},targets={}", option.rank, option.alpha, fmt::join(option.targets, ","));
}

Lora lora_of(const LoraOption& option, ModelFamily family) {
  if (option.rank == 0) return {};
  Lora lora{.rank = option.rank, .alpha = option.alpha};
  for (const std::string& target : option.targets) {
    bool found = false;
    for (const ProjectionNames& names : projections_of(family)) {
      if (!matches(target, names)) continue;
      lora.add(names.projection);
      found = true;
    }
    if (!found) {
      throw UsageError(
          fmt::format("invalid target '{}' for --lora: expected {}, the linear layers of this model's "
                      "blocks, or {} for all of them.",
                      target, known_targets(family), kAllLinear));
    }
  }
  return lora;
}

std::vector<std::string> target_words(const Lora& lora, ModelFamily family) {
  std::vector<std::string> words;
  for (const ProjectionNames& names : projections_of(family)) {
    if (lora.adapts(names.projection)) words.emplace_back(names.word);
  }
  if (words.size() == projections_of(family).size()) return {std::string(kAllLinear)};
  return words;
}

}  // namespace aliquot
