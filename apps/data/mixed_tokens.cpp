// Several token files with weights.
#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <limits>

#include "apps/data/mixture.h"
#include "apps/data/token_source.h"
#include "engine/options/values.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The tokens of several sources, one source after the other. Each source is a part.
class MixedTokens : public TokenSource {
 public:
  MixedTokens(std::vector<std::unique_ptr<TokenSource>> sources, const std::vector<double>& weights)
      : sources_(std::move(sources)) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      parts_.push_back({token_count_, sources_[i]->token_count(), weights[i]});
      token_count_ += parts_.back().count;
    }
  }

  int64_t token_count() const override { return token_count_; }
  std::vector<TokenPart> parts() const override { return parts_; }
  std::string describe() const override {
    std::string text;
    for (const auto& source : sources_) text += (text.empty() ? "" : ", ") + source->describe();
    return text;
  }
  std::string describe_part(size_t part) const override { return sources_[part]->describe(); }
  int64_t token_bytes() const override {
    int64_t largest = 0;
    for (const auto& source : sources_) largest = std::max(largest, source->token_bytes());
    return largest;
  }
  int64_t recorded_vocabulary() const override {
    int64_t largest = 0;
    for (const auto& source : sources_) largest = std::max(largest, source->recorded_vocabulary());
    return largest;
  }
  std::string tokenizer_json() const override {
    for (const auto& source : sources_) {
      if (std::string text = source->tokenizer_json(); !text.empty()) return text;
    }
    return {};
  }
  bool ignores_targets() const override {
    return std::ranges::any_of(sources_, [](const auto& source) { return source->ignores_targets(); });
  }
  int64_t count_targets(int64_t first, int64_t count) const override {
    int64_t counted = 0;
    for_parts(first, count, [&](size_t part, int64_t begin, int64_t length) {
      counted += sources_[part]->count_targets(begin, length);
    });
    return counted;
  }
  void ignore_targets(int64_t first, std::span<int32_t> targets) const override {
    for_parts(first, static_cast<int64_t>(targets.size()), [&](size_t part, int64_t begin, int64_t length) {
      const int64_t done = parts_[part].first + begin - first;
      sources_[part]->ignore_targets(begin, targets.subspan(static_cast<size_t>(done), static_cast<size_t>(length)));
    });
  }

  std::optional<int64_t> find_out_of_range(int64_t first, int64_t count, int64_t vocabulary) const override {
    std::optional<int64_t> found;
    for_parts(first, count, [&](size_t part, int64_t begin, int64_t length) {
      if (found) return;
      found = sources_[part]->find_out_of_range(begin, length, vocabulary);
      if (found) *found += parts_[part].first;
    });
    return found;
  }

 protected:
  void fetch(int64_t first, std::span<int32_t> to) const override {
    for_parts(first, static_cast<int64_t>(to.size()), [&](size_t part, int64_t begin, int64_t length) {
      const int64_t done = parts_[part].first + begin - first;
      sources_[part]->read_unchecked(begin, to.subspan(static_cast<size_t>(done), static_cast<size_t>(length)));
    });
  }

 private:
  size_t part_at(int64_t position) const {
    const auto behind = std::ranges::upper_bound(parts_, position, {}, &TokenPart::first);
    return static_cast<size_t>(behind - parts_.begin()) - 1;
  }
  /// Calls visit(part, first token in the part, count) for the parts of the tokens [first, first + count).
  template <typename Visit>
  void for_parts(int64_t first, int64_t count, Visit&& visit) const {
    const int64_t end = first + count;
    for (size_t part = part_at(first); first < end; ++part) {
      const int64_t begin = first - parts_[part].first;
      const int64_t length = std::min(end - first, parts_[part].count - begin);
      visit(part, begin, length);
      first += length;
    }
  }

  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::vector<TokenPart> parts_;
  int64_t token_count_ = 0;
};

struct WeightedFile {
  std::string file;
  double weight;
};

/// Parses "FILE:WEIGHT". Returns nullopt if `text` does not have this form.
std::optional<WeightedFile> parse_weighted(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  try {
    const double weight = parse_real(text.substr(colon + 1), {std::numeric_limits<double>::min(), 1e9});
    return WeightedFile{text.substr(0, colon), weight};
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

/// Splits a list at commas.
std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> items{""};
  for (const char c : list) {
    if (c == ',') {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

/// Throws if the two files record different vocabularies or tokenizers.
void check_same_tokenizer(const TokenSource& a, const TokenSource& b, const std::string& option) {
  const int64_t a_size = a.recorded_vocabulary(), b_size = b.recorded_vocabulary();
  const std::string a_tokenizer = a.recorded_tokenizer(), b_tokenizer = b.recorded_tokenizer();
  std::string difference;
  if (a_tokenizer != b_tokenizer && !a_tokenizer.empty() && !b_tokenizer.empty())
    difference = fmt::format("SHA-256 {} and {}", a_tokenizer, b_tokenizer);
  if (a_size != b_size && a_size > 0 && b_size > 0) difference = fmt::format("of {} and {} tokens", a_size, b_size);
  if (difference.empty()) return;
  throw UsageError(
      fmt::format("{}: {} and {} were written with different tokenizers ({}): write both files with one "
                  "tokenizer.json.",
                  option, a.describe(), b.describe(), difference));
}

std::unique_ptr<TokenSource> open_list(const std::string& files, const std::string& option) {
  const auto refuse = [&](std::string_view why) {
    throw UsageError(fmt::format("invalid value '{}' for {}: {}", files, option, why));
  };
  std::vector<std::unique_ptr<TokenSource>> sources;
  std::vector<double> weights;
  for (const std::string& item : items_of(files)) {
    const auto parsed = parse_weighted(item);
    if (!parsed)
      refuse(fmt::format("'{}' is not FILE:WEIGHT with a positive weight: expected FILE, or FILE:WEIGHT,FILE:WEIGHT.",
                         item));
    sources.push_back(open_token_source(parsed->file, option));
    weights.push_back(parsed->weight);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t j = 0; j < i; ++j) check_same_tokenizer(*sources[j], *sources[i], option);
  }
  try {
    const Mixture has_valid_weights(weights);
  } catch (const UsageError& error) {
    refuse(error.what());
  }
  return std::make_unique<MixedTokens>(std::move(sources), weights);
}

}  // namespace

std::unique_ptr<TokenSource> open_token_sources(const std::string& files, const std::string& option) {
  std::error_code error;
  const bool is_file = std::filesystem::exists(files, error);
  if (is_file || (files.find(',') == std::string::npos && !parse_weighted(files)))
    return open_token_source(files, option);
  return open_list(files, option);
}

}  // namespace aliquot
