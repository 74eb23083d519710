#pragma once
// Tokens that lie in a file as integers, one after the other.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/data/mapped_file.h"
#include "apps/data/token_source.h"

namespace aliquot {

/// Where they lie, low byte first. `count` -1: from the offset to the end of the file.
struct TokenLayout {
  int64_t offset_bytes = 0;
  int64_t count = -1;
  int bytes_per_token = 1;  // 1, 2, 4 or 8
  bool is_signed = false;
  std::string unit = "bytes";  // what describe() calls them
};

/// Throws UsageError when the file is absent, shorter than that, or cut within a token.
std::unique_ptr<TokenSource> open_mapped_tokens(const std::filesystem::path& file, const TokenLayout& layout);

// The format of a file, recognised by its content. The functions that throw throw UsageError, one sentence that begins
// with the path.

/// Throws if the file begins like one of a format that holds no raw tokens: gzip, zstd, xz, bzip2, lz4, zip, parquet, arrow,
/// safetensors, HDF5, Megatron's index, or the files that llm.c writes beside its tokens.
void refuse_other_formats(const MappedFile& file, const std::filesystem::path& path);

bool has_hdf5_signature(const MappedFile& file);

/// The layout of a file with a header: llm.c's 16-bit or 32-bit tokens, or a one-dimensional .npy array of little-endian
/// integers. Returns nothing for a file without such a header. Throws if the header is not supported or does not match the
/// size of the file.
std::optional<TokenLayout> layout_of_header(const MappedFile& file, const std::filesystem::path& path);

/// Throws if a file without a header looks like integers wider than those of `layout`: the upper half of each, which is 0
/// or nearly 0, would be read as a token.
void refuse_wider_integers(const MappedFile& file, const std::filesystem::path& path, const TokenLayout& layout);

}  // namespace aliquot
