#pragma once
// Writes an HDF5 file of tokens, as open_hdf5_tokens() reads it.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/system/file.h"

namespace aliquot {

/// The attributes of the dataset `tokens`.
struct TokenFileFacts {
  int64_t vocabulary_size = 0;
  int64_t end_of_text = -1;  // the token that ends a document; -1 if there is none
  int64_t document_count = 0;
  std::string tokenizer_sha256;  // of the tokenizer.json
};

/// Collects tokens in a temporary file without a name, because their number is not known before the end and the dataset
/// must be contiguous. finish() writes the HDF5 file. The file appears under its name only when it is complete and
/// durable.
class TokenFileWriter {
 public:
  /// Tokens are unsigned integers of `bytes_per_token` bytes, 2 or 4. Throws UsageError if `path` exists or its
  /// directory is missing.
  TokenFileWriter(const std::filesystem::path& path, int bytes_per_token);

  /// The tokens must fit. Throws FaultError if a write fails.
  void append(std::span<const int32_t> tokens);
  int64_t token_count() const { return token_count_; }
  /// Requires at least one token. Throws FaultError if a write fails.
  void finish(const TokenFileFacts& facts);

 private:
  void flush();
  void write_hdf5(const std::filesystem::path& path, const TokenFileFacts& facts);

  std::filesystem::path path_;
  size_t bytes_per_token_;
  Directory directory_;
  File spool_;
  std::vector<std::byte> buffer_;
  int64_t token_count_ = 0, spooled_bytes_ = 0;
};

}  // namespace aliquot
