#pragma once
// Tokens in a file that stores them as an array of integers.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/data/input_file.h"
#include "apps/data/loss_ranges.h"
#include "apps/data/token_source.h"

namespace aliquot {

/// The position and the type of the tokens in a file. Tokens are little-endian. A `count` of -1 means all tokens up to
/// the end of the file.
struct TokenLayout {
  int64_t offset_bytes = 0;
  int64_t count = -1;
  int bytes_per_token = 1;  // 1, 2, 4 or 8
  bool is_signed = false;
  std::string unit = "bytes";  // the name of the tokens in messages
  bool is_text = false;        // the bytes of the file are the tokens
  int64_t vocabulary = 0;      // size of the vocabulary that the file records; 0 if it records none
  std::optional<RangeLayout> loss_ranges = {};
  struct Text {
    int64_t offset_bytes = 0, size_bytes = 0;
  };
  Text tokenizer_json = {};    // the text of the tokenizer.json in the file; empty if the file has none
  std::string tokenizer = {};  // SHA-256 of the tokenizer.json that the file records; empty if it records none
};

/// Throws UsageError if the file cannot be opened, is shorter than the layout requires, or ends within a token.
std::unique_ptr<TokenSource> open_stored_tokens(const std::filesystem::path& file, const TokenLayout& layout);

// The functions below recognize formats by content. They throw only UsageError. The messages begin with the path.

/// Throws if the file begins like a known format without raw tokens: gzip, zstd, xz, bzip2, lz4, zip, parquet, arrow,
/// safetensors, HDF5, a Megatron index, or another file of llm.c.
void refuse_other_formats(const InputFile& file, const std::filesystem::path& path);

bool has_hdf5_signature(const InputFile& file);

/// The layout of a file with a header: llm.c's 16-bit or 32-bit tokens, or a one-dimensional .npy array of
/// little-endian integers. Returns nothing if the file has no such header. Throws if the header is not supported or
/// does not match the size of the file.
std::optional<TokenLayout> layout_of_header(const InputFile& file, const std::filesystem::path& path);

/// Throws if a file without a header looks like integers wider than those of `layout`. Their upper halves, which are 0
/// or nearly 0, would be read as tokens.
void refuse_wider_integers(const InputFile& file, const std::filesystem::path& path, const TokenLayout& layout);

}  // namespace aliquot
