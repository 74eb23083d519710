#include "apps/tokenize/bpe_learner.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apps/text/pre_tokenizer.h"

namespace aliquot {
namespace {

constexpr int32_t kBytes = 256;

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return std::hash<uint64_t>()(uint64_t{static_cast<uint32_t>(pair.first)} << 32 |
                                 static_cast<uint32_t>(pair.second));
  }
};

struct Word {
  std::vector<int32_t> tokens;
  int64_t count;
};

/// The words as tokens so far, and the number of times that each pair of adjacent tokens occurs.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) count_word(w, 1);
    for (const auto& [pair, place] : places_) queue_.push({place.count, pair});
  }

  /// Returns the most frequent pair, or (-1, -1) if no pair occurs twice. Of pairs that occur equally often, returns
  /// the one with the smallest numbers.
  Pair most_frequent() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t now = places_[top.pair].count;
      if (now == top.count) return now < 2 ? Pair{-1, -1} : top.pair;
      if (now > 0) queue_.push({now, top.pair});  // merges have changed the count since it was queued
    }
    return {-1, -1};
  }

  /// Replaces each occurrence of the pair by `token`.
  void merge(const Pair& pair, int32_t token) {
    const std::set<size_t> words = std::exchange(places_[pair].words, {});
    for (const size_t w : words) {
      count_word(w, -1);
      replace(words_[w].tokens, pair, token);
      count_word(w, 1);
    }
    // Only pairs with the new token can have become more frequent.
    for (const size_t w : words) {
      const std::vector<int32_t>& tokens = words_[w].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        const Pair neighbours{tokens[i], tokens[i + 1]};
        if ((neighbours.first == token || neighbours.second == token) && queued_.insert(neighbours).second)
          queue_.push({places_[neighbours].count, neighbours});
      }
    }
    queued_.clear();
  }

 private:
  struct Place {
    int64_t count = 0;
    std::set<size_t> words = {};  // which have the pair, or had it
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static void replace(std::vector<int32_t>& tokens, const Pair& pair, int32_t token) {
    size_t to = 0;
    for (size_t from = 0; from < tokens.size(); ++from) {
      const bool is_pair = from + 1 < tokens.size() && Pair{tokens[from], tokens[from + 1]} == pair;
      tokens[to++] = is_pair ? token : tokens[from];
      from += is_pair ? 1 : 0;
    }
    tokens.resize(to);
  }

  void count_word(size_t w, int64_t sign) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Place& place = places_[{word.tokens[i], word.tokens[i + 1]}];
      place.count += sign * word.count;
      if (sign > 0) place.words.insert(w);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Place, PairHash> places_;
  std::priority_queue<Candidate> queue_;
  std::set<Pair> queued_;  // by the current merge
};

const PreTokenizer& word_splitter() {
  static const nlohmann::json json{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  static const std::string file;
  static const PreTokenizer splitter{JsonField(json, "", file)};
  return splitter;
}

}  // namespace

void BpeLearner::add(std::string_view text) {
  TextPieces pieces;
  pieces.pieces.push_back({text, true});
  word_splitter().split(pieces);
  for (const TextPiece& piece : pieces.pieces) {
    const auto found = counts_.find(piece.text);
    if (found != counts_.end())
      ++found->second;
    else
      counts_.emplace(piece.text, 1);
  }
}

ByteLevelTokens BpeLearner::learn(int64_t vocabulary) const {
  // Sorted, so that the numbers of words do not depend on the order of the texts.
  const std::map<std::string, int64_t> sorted(counts_.begin(), counts_.end());
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    Word& word = words.emplace_back(Word{{}, count});
    for (const char byte : text) word.tokens.push_back(static_cast<unsigned char>(byte));
  }
  PairCounts pairs(std::move(words));
  ByteLevelTokens tokens{.end_of_text = "<|endoftext|>", .splits_words = true};
  while (kBytes + static_cast<int64_t>(tokens.merges.size()) + 1 < vocabulary) {
    const Pair pair = pairs.most_frequent();
    if (pair.first < 0) break;
    pairs.merge(pair, kBytes + static_cast<int32_t>(tokens.merges.size()));
    tokens.merges.push_back(pair);
  }
  return tokens;
}

}  // namespace aliquot
