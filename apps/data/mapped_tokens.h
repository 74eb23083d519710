#pragma once
// Tokens that lie in a file as integers, one after the other.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

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

}  // namespace aliquot
