#pragma once
// Where tokens come from: one long row of them, whatever it is kept in.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace aliquot {

/// Tokens by position, the same for every rank and every run. read() may be called from several threads at once.
class TokenSource {
 public:
  TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;
  virtual ~TokenSource() = default;

  virtual int64_t token_count() const = 0;
  virtual std::string describe() const = 0;  // "tokens.bin (1000 16-bit tokens)"

  /// Tokens first, first + 1, ... as many as `to` holds; they lie within token_count(). Throws UsageError, naming place
  /// and value, when one lies outside [0, vocabulary).
  void read(int64_t first, std::span<int32_t> to, int64_t vocabulary) const;

  /// The position of the first of tokens [first, first + count) outside [0, vocabulary), or nothing. A source that generates
  /// its tokens returns nothing. Much faster than read(); keeps no pages of the file mapped. Throws FaultError if the file
  /// has become shorter.
  virtual std::optional<int64_t> find_out_of_range(int64_t first, int64_t count, int64_t vocabulary) const;
  /// Bytes per stored token; 0 for a source that generates its tokens.
  virtual int64_t token_bytes() const { return 0; }
  /// Throws the UsageError of read() for the token at that position.
  [[noreturn]] void refuse(int64_t position, int64_t vocabulary) const;

 protected:
  /// What does not fit 32 bits may come as any negative number.
  virtual void fetch(int64_t first, std::span<int32_t> to) const = 0;
};

/// The format follows from the file's header (llm.c, .npy), else from its suffix: `.bin` is unsigned 16-bit tokens, `.u32`
/// unsigned 32-bit tokens, `.h5` the dataset `tokens`, anything else bytes as tokens. Files are mapped, so that ranks of one
/// host share their pages. Throws UsageError, which begins with `option`, if the file is missing or malformed, is of another
/// format, or holds wider integers than its suffix says.
std::unique_ptr<TokenSource> open_token_source(const std::filesystem::path& file, const std::string& option = "--data");

/// A little language made up on the spot: lines of English-like sentences as bytes, with few enough words and rules that
/// a small model learns it within minutes. 2^30 tokens; a vocabulary below 128 gets its letters folded into it.
std::unique_ptr<TokenSource> make_synthetic_language(int64_t vocabulary);

/// The dataset `tokens` of an HDF5 file: little-endian integers of any width, contiguous, so that it can be mapped.
std::unique_ptr<TokenSource> open_hdf5_tokens(const std::filesystem::path& file);

}  // namespace aliquot
