// Encodes pieces with a BPE model.
#include <algorithm>

#include "apps/text/models/bpe_model.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

/// A token of the piece. Tokens are in a linked list, so that a merge is cheap.
struct Symbol {
  static constexpr int32_t kNone = -1, kMerged = -2;
  int32_t token;  // kMerged: the symbol is now part of the one before it
  int32_t previous, next;
};

/// A merge that may be possible. Other merges may have changed the symbols since.
struct Candidate {
  int32_t rank, position, token;

  /// Order of a heap whose top has the lowest rank, and of these the first position.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

class BpeEncoder : public PieceEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model) : model_(model) {}

  void encode(std::string_view piece, std::vector<int32_t>& tokens) override {
    if (const auto whole = model_.whole_piece(piece)) return tokens.push_back(*whole);
    if (model_.is_byte_level()) return encode_cached(piece, tokens);
    size_t begin = 0;
    for (size_t cut = next_cut(piece, 0); begin < piece.size(); begin = cut, cut = next_cut(piece, begin))
      encode_cached(piece.substr(begin, cut - begin), tokens);
  }

 private:
  static constexpr size_t kCachedBytes = 64, kCachedPieces = size_t{1} << 16;

  size_t next_cut(std::string_view piece, size_t begin) const;
  void encode_cached(std::string_view piece, std::vector<int32_t>& tokens);
  void encode_merged(std::string_view piece, std::vector<int32_t>& tokens);
  void add_characters(std::string_view piece);
  void add_symbol(int32_t token) {
    const auto own = static_cast<int32_t>(symbols_.size());
    if (own > 0) symbols_.back().next = own;
    symbols_.push_back({token, own - 1, Symbol::kNone});
  }
  bool propose(int32_t left, int32_t right);
  void merge_all();

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<int32_t> bytes_;
  StringMap<std::vector<int32_t>> cache_;
};

/// Returns the first position after `begin` at which the piece can be cut without a change of its tokens, or its end.
/// Such a position is between two characters of the vocabulary that no merge joins. Only positions before U+2581, which
/// stands for a blank, are examined: the parts are then words, many of which occur often.
size_t BpeEncoder::next_cut(std::string_view piece, size_t begin) const {
  constexpr std::string_view kBlank = "\xe2\x96\x81";
  for (size_t at = piece.find(kBlank, begin + 1); at != std::string_view::npos; at = piece.find(kBlank, at + 1)) {
    size_t before = at, after = at;
    previous_code_point(piece, before);
    const char32_t left = next_code_point(piece, before), right = next_code_point(piece, after);
    const bool are_known = model_.character(left) >= 0 && model_.character(right) >= 0;
    if (are_known && !model_.can_be_adjacent(left, right)) return at;
  }
  return piece.size();
}

void BpeEncoder::encode_cached(std::string_view piece, std::vector<int32_t>& tokens) {
  if (piece.size() > kCachedBytes) return encode_merged(piece, tokens);
  const auto found = cache_.find(piece);
  if (found != cache_.end()) {
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
    return;
  }
  const size_t before = tokens.size();
  encode_merged(piece, tokens);
  if (cache_.size() >= kCachedPieces) cache_.clear();
  cache_.emplace(piece, std::vector<int32_t>(tokens.begin() + static_cast<ptrdiff_t>(before), tokens.end()));
}

void BpeEncoder::encode_merged(std::string_view piece, std::vector<int32_t>& tokens) {
  symbols_.clear();
  add_characters(piece);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.token != Symbol::kMerged) tokens.push_back(symbol.token);
  }
}

/// Makes the symbols of the characters. Characters that are not in the vocabulary become the tokens of their bytes, or
/// the unknown token, or nothing. As in the tokenizers package, byte tokens do not end a run of unknown characters:
/// the unknown token follows them.
void BpeEncoder::add_characters(std::string_view piece) {
  bool has_unknown = false;  // an unknown token that is not yet added
  const auto add_unknown = [&] {
    if (has_unknown) add_symbol(*model_.unknown());
    has_unknown = false;
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    const char32_t code = model_.is_byte_level() ? static_cast<unsigned char>(piece[at++]) : next_code_point(piece, at);
    if (const int32_t token = model_.character(code); token >= 0) {
      add_unknown();
      add_symbol(token);
      continue;
    }
    bytes_.clear();
    if (append_byte_tokens(model_.byte_tokens(), piece.substr(begin, at - begin), bytes_)) {
      for (const int32_t byte : bytes_) add_symbol(byte);
    } else if (model_.unknown()) {
      if (!model_.fuses_unknown()) add_unknown();
      has_unknown = true;
    }
  }
  add_unknown();
}

/// Appends the merge of two adjacent symbols, if there is one, to the heap. The caller restores the order of the heap.
bool BpeEncoder::propose(int32_t left, int32_t right) {
  const auto merge =
      model_.merge_of(symbols_[static_cast<size_t>(left)].token, symbols_[static_cast<size_t>(right)].token);
  if (merge) heap_.push_back({merge->rank, left, merge->token});
  return merge.has_value();
}

void BpeEncoder::merge_all() {
  heap_.clear();
  for (int32_t right = 1; right < static_cast<int32_t>(symbols_.size()); ++right) propose(right - 1, right);
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate top = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<size_t>(top.position)];
    if (left.token == Symbol::kMerged || left.next == Symbol::kNone) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    const auto merge = model_.merge_of(left.token, right.token);
    if (!merge || merge->token != top.token) continue;  // one of the symbols has changed
    left.token = top.token;
    left.next = right.next;
    right.token = Symbol::kMerged;
    if (left.next != Symbol::kNone) symbols_[static_cast<size_t>(left.next)].previous = top.position;
    if (left.previous != Symbol::kNone && propose(left.previous, top.position))
      std::push_heap(heap_.begin(), heap_.end());
    if (left.next != Symbol::kNone && propose(top.position, left.next)) std::push_heap(heap_.begin(), heap_.end());
  }
}

}  // namespace

std::unique_ptr<PieceEncoder> BpeModel::make_encoder() const { return std::make_unique<BpeEncoder>(*this); }

}  // namespace aliquot
