#pragma once
// A sequence of tokens, in a file or generated.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace aliquot {

/// Consecutive tokens of a source, which are cut into sequences independently of the other parts.
struct TokenPart {
  int64_t first = 0, count = 0;
  double weight = 1;  // its share of the sequences of a run, relative to the other parts
};

/// Random access to tokens, which are the same for every rank and run. Several threads may call read() and
/// find_out_of_range() at the same time.
class TokenSource {
 public:
  TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;
  virtual ~TokenSource() = default;

  virtual int64_t token_count() const = 0;
  virtual std::string describe() const = 0;  // "tokens.bin (1000 16-bit tokens)"
  /// The parts of the source, in order. They have all tokens.
  virtual std::vector<TokenPart> parts() const { return {{0, token_count(), 1}}; }
  virtual std::string describe_part(size_t /*part*/) const { return describe(); }

  /// Reads tokens without a check against a vocabulary. A token that does not fit in an int32_t becomes a negative
  /// number.
  void read_unchecked(int64_t first, std::span<int32_t> to) const { fetch(first, to); }
  /// Reads tokens [first, first + to.size()), which must be below token_count(). Throws UsageError, with position and
  /// value, for a token outside [0, vocabulary).
  void read(int64_t first, std::span<int32_t> to, int64_t vocabulary) const;

  /// Returns the position of the first token in [first, first + count) whose value is outside [0, vocabulary), or
  /// nothing. Sources that generate their tokens return nothing. This function is much faster than read().
  /// Throws FaultError if the file has become shorter, or if the system cannot read it.
  virtual std::optional<int64_t> find_out_of_range(int64_t first, int64_t count, int64_t vocabulary) const;
  /// The size of the vocabulary that the file records; 0 if it records none.
  virtual int64_t recorded_vocabulary() const { return 0; }
  /// The SHA-256 of the tokenizer.json that the file records; empty if it records none.
  virtual std::string recorded_tokenizer() const { return {}; }
  /// The text of the tokenizer.json that encoded the tokens, if the source has it; otherwise empty.
  virtual std::string tokenizer_json() const { return {}; }
  /// Whether the loss of some tokens does not count.
  virtual bool ignores_targets() const { return false; }
  /// The number of tokens in [first, first + count) whose loss counts when they are targets.
  virtual int64_t count_targets(int64_t /*first*/, int64_t count) const { return count; }
  /// `targets` are the tokens from `first` on. Replaces by kIgnoredTarget those whose loss does not count.
  virtual void ignore_targets(int64_t /*first*/, std::span<int32_t> /*targets*/) const {}
  /// Bytes per stored token; 0 for a source that generates its tokens.
  virtual int64_t token_bytes() const { return 0; }
  /// Throws the UsageError that read() throws for the token at `position`.
  [[noreturn]] void refuse(int64_t position, int64_t vocabulary) const;

 protected:
  /// Reads tokens without a check. A token that does not fit in an int32_t becomes a negative number.
  virtual void fetch(int64_t first, std::span<int32_t> to) const = 0;
};

/// Opens a file of tokens. A header (llm.c, .npy) determines the format, otherwise the suffix: `.bin` and `.u16` have
/// unsigned 16-bit tokens, `.u32` unsigned 32-bit tokens, `.h5` and `.hdf5` the dataset `tokens`. In all other files
/// each byte is a token. Throws UsageError if the file is missing or malformed, has another format, or has wider
/// integers than its suffix implies. Messages begin with `option`.
std::unique_ptr<TokenSource> open_token_source(const std::filesystem::path& file, const std::string& option = "--data");

/// Opens one file, or several files with weights: "a.h5:0.7,b.h5:0.3". The text is the name of one file if a file of
/// this name exists, or if the text does not have that form. The result has one part for each file. Throws UsageError
/// as open_token_source() does, for invalid weights, and if two files record different vocabularies or tokenizers.
std::unique_ptr<TokenSource> open_token_sources(const std::string& files, const std::string& option = "--data");

/// A synthetic language of 2^30 tokens. Its English-like sentences have so few words and rules that a small model
/// learns the language within minutes. Each token is one byte of the text, modulo `vocabulary`.
std::unique_ptr<TokenSource> make_synthetic_language(int64_t vocabulary);

/// Opens the dataset `tokens` of an HDF5 file. The dataset must be contiguous and have little-endian integers. If the
/// file has the dataset `loss_ranges`, only the loss of tokens in these ranges counts: see loss_ranges.h.
std::unique_ptr<TokenSource> open_hdf5_tokens(const std::filesystem::path& file);

}  // namespace aliquot
