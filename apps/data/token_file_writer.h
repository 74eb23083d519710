#pragma once
// Writes an HDF5 file of tokens, as open_hdf5_tokens() reads it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/system/file.h"

namespace aliquot {

/// What the file records besides the tokens. Numbers and the SHA-256 are attributes of the dataset `tokens`.
struct TokenFileFacts {
  int64_t vocabulary_size = 0;
  int64_t end_of_text = -1;  // the token that ends a document; -1 if there is none
  int64_t document_count = 0;
  std::string tokenizer_sha256 = {};  // of the tokenizer.json
  std::string tokenizer_json = {};    // its text, in the dataset `tokenizer_json`; empty: the file has no such dataset
};

/// Collects bytes in a temporary file without a name.
class Spool {
 public:
  explicit Spool(const Directory& directory);

  /// Throws FaultError if a write fails.
  void append(std::span<const std::byte> bytes);
  int64_t size_bytes() const { return spooled_bytes_ + static_cast<int64_t>(buffer_.size()); }
  /// Calls visit(bytes, offset) for all bytes, in parts of whole multiples of 16 bytes except the last. Use it once,
  /// after the last append().
  void for_each_part(const std::function<void(std::span<const std::byte>, int64_t)>& visit);

 private:
  void flush();

  File file_;
  std::vector<std::byte> buffer_;
  int64_t spooled_bytes_ = 0;
};

/// Collects tokens in temporary files, because their number is not known before the end and the datasets must be
/// contiguous. finish() writes the HDF5 file. The file appears under its name only when it is complete and durable, and
/// never replaces a file.
class TokenFileWriter {
 public:
  /// Tokens are unsigned integers of `bytes_per_token` bytes, 2 or 4. Throws UsageError if `path` exists or its
  /// directory is missing. The file system must outlive this object.
  TokenFileWriter(const std::filesystem::path& path, int bytes_per_token, FileSystem& system = FileSystem::system());

  /// The tokens must fit. Throws FaultError if a write fails.
  void append(std::span<const int32_t> tokens);
  /// The same, but only the loss of the tokens from index `first` on counts. Call this function for all tokens of the
  /// file or for none. `first` is less than the number of tokens.
  void append_with_loss_from(std::span<const int32_t> tokens, int64_t first);
  int64_t token_count() const { return token_count_; }
  /// The number of tokens after `first` of all calls of append_with_loss_from().
  int64_t loss_token_count() const { return loss_token_count_; }
  /// Requires at least one token. Throws FaultError if a write fails, or if `path` exists now.
  void finish(const TokenFileFacts& facts);

 private:
  void write_hdf5(const std::filesystem::path& path, const TokenFileFacts& facts);

  std::filesystem::path path_;
  size_t bytes_per_token_;
  Directory directory_;
  Spool tokens_, loss_ranges_, tokenizer_;
  int64_t token_count_ = 0, loss_token_count_ = 0;
};

}  // namespace aliquot
