// Generates the tokens of the built-in synthetic language.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "apps/data/token_source.h"
#include "apps/text/byte_tokenizer.h"

namespace aliquot {
namespace {

using namespace std::string_view_literals;

constexpr std::array kDeterminers{"the"sv, "a"sv, "every"sv, "no"sv};
constexpr std::array kAdjectives{"red"sv, "small"sv, "old"sv, "quick"sv, "quiet"sv, "warm"sv, "green"sv, "proud"sv};
constexpr std::array kNouns{"fox"sv,   "tree"sv,  "river"sv, "stone"sv, "child"sv, "bird"sv,  "house"sv, "cloud"sv,
                            "horse"sv, "baker"sv, "light"sv, "storm"sv, "queen"sv, "field"sv, "clock"sv, "ship"sv};
constexpr std::array kVerbs{"sees"sv, "finds"sv, "follows"sv, "loves"sv, "hides"sv, "carries"sv, "wakes"sv, "leaves"sv};
constexpr std::array kSentenceEndings{"."sv, "."sv, "."sv, " at night."sv, " in spring."sv, " again."sv};

constexpr int64_t kLineTokens = 64;  // lines have a fixed length, so that any token can be generated on its own
constexpr int64_t kLineCount = int64_t{1} << 24;

// Makes the random choices for the text of one line.
class RandomChoices {
 public:
  explicit RandomChoices(int64_t line)
      : state_(static_cast<uint64_t>(line) * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du) {}

  template <size_t N>
  std::string_view of(const std::array<std::string_view, N>& words) {
    return words[next() % N];
  }
  bool flip_coin() { return next() % 2 == 0; }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

void append_noun_phrase(std::string& text, RandomChoices& choices) {
  text += choices.of(kDeterminers);
  text += ' ';
  if (choices.flip_coin()) text.append(choices.of(kAdjectives)).append(" ");
  text += choices.of(kNouns);
}

// Returns a line of kLineTokens characters: sentences, the last of which is truncated, and a newline.
std::string generate_line(int64_t line) {
  RandomChoices choices(line);
  std::string text;
  while (static_cast<int64_t>(text.size()) < kLineTokens) {
    append_noun_phrase(text, choices);
    text.append(" ").append(choices.of(kVerbs)).append(" ");
    append_noun_phrase(text, choices);
    text.append(choices.of(kSentenceEndings)).append(" ");
  }
  text.resize(kLineTokens);
  text.back() = '\n';
  return text;
}

class SyntheticLanguage : public TokenSource {
 public:
  explicit SyntheticLanguage(int64_t vocabulary) : vocabulary_(vocabulary) {}

  int64_t token_count() const override { return kLineTokens * kLineCount; }
  std::string describe() const override { return "the built-in synthetic language"; }
  std::string tokenizer_json() const override { return vocabulary_ < 256 ? "" : byte_tokenizer_json(); }

 protected:
  void fetch(int64_t first, std::span<int32_t> to) const override {
    size_t done = 0;
    while (done < to.size()) {
      const int64_t at = first + static_cast<int64_t>(done);
      const std::string text = generate_line(at / kLineTokens);
      const auto from = static_cast<size_t>(at % kLineTokens);
      const size_t count = std::min(text.size() - from, to.size() - done);
      for (size_t i = 0; i < count; ++i) to[done + i] = static_cast<int32_t>(text[from + i] % vocabulary_);
      done += count;
    }
  }

 private:
  int64_t vocabulary_;
};

}  // namespace

std::unique_ptr<TokenSource> make_synthetic_language(int64_t vocabulary) {
  return std::make_unique<SyntheticLanguage>(vocabulary);
}

}  // namespace aliquot
