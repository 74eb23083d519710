#include "apps/data/stored_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "apps/data/input_file.h"
#include "apps/text/byte_tokenizer.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Returns the index of the first of `count` tokens that is at least `bound`, or `count` if all are below it. Tokens
/// need not be aligned. Computes the maximum of each chunk without branches, so that the compiler vectorizes the loop.
/// Searches a chunk only if its maximum is at least `bound`.
template <typename Token>
int64_t first_at_least(const std::byte* from, int64_t count, uint64_t bound) {
  if (bound > uint64_t{std::numeric_limits<Token>::max()}) return count;
  const auto limit = static_cast<Token>(bound);
  const auto token = [from](int64_t i) {
    Token value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  constexpr int64_t kChunk = 4096;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    Token largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, token(i));
    if (largest < limit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (token(i) >= limit) return i;
    }
  }
  return count;
}

class StoredTokens : public TokenSource {
 public:
  StoredTokens(const std::filesystem::path& path, TokenLayout layout)
      : path_(path.string()), file_(path), layout_(std::move(layout)) {
    const int64_t bytes = file_.size_bytes() - layout_.offset_bytes;
    if (layout_.count < 0) {
      if (bytes % layout_.bytes_per_token != 0) {
        throw UsageError(path_ + ": " + std::to_string(bytes) + " bytes are not a whole number of " + layout_.unit +
                         ": the file is truncated, or it is not a file of tokens.");
      }
      layout_.count = bytes / layout_.bytes_per_token;
    }
    if (layout_.count > bytes / layout_.bytes_per_token) {
      throw UsageError(path_ + ": the file is shorter than its header states: it is truncated.");
    }
    const auto [offset, size] = layout_.tokenizer_json;
    if (offset < 0 || size > file_.size_bytes() - offset)
      throw UsageError(path_ + ": the dataset 'tokenizer_json' ends after the end of the file: it is truncated.");
    if (layout_.loss_ranges) ranges_.emplace(file_, *layout_.loss_ranges, layout_.count, path);
  }

  int64_t token_count() const override { return layout_.count; }
  int64_t token_bytes() const override { return layout_.bytes_per_token; }
  int64_t recorded_vocabulary() const override { return layout_.vocabulary; }
  bool ignores_targets() const override { return ranges_.has_value(); }
  int64_t count_targets(int64_t first, int64_t count) const override {
    return ranges_ ? ranges_->count_tokens(first, count) : count;
  }
  void ignore_targets(int64_t first, std::span<int32_t> targets) const override {
    if (ranges_) ranges_->ignore_others(first, targets);
  }
  std::string recorded_tokenizer() const override { return layout_.tokenizer; }
  std::string tokenizer_json() const override {
    if (layout_.is_text) return byte_tokenizer_json();
    const auto [offset, size] = layout_.tokenizer_json;
    return file_.read_text(offset, size);
  }

  std::optional<int64_t> find_out_of_range(int64_t first, int64_t count, int64_t vocabulary) const override {
    const int64_t width = layout_.bytes_per_token, each = kBufferBytes / width;
    file_.prefetch(layout_.offset_bytes + first * width, count * width);
    std::vector<std::byte> buffer(static_cast<size_t>(kBufferBytes));
    for (int64_t done = 0; done < count; done += each) {
      const int64_t of_part = std::min(each, count - done);
      file_.read(layout_.offset_bytes + (first + done) * width, buffer.data(), of_part * width);
      const int64_t found = find_out_of_range_in(buffer.data(), of_part, vocabulary);
      if (found < of_part) return first + done + found;
    }
    return std::nullopt;
  }
  std::string describe() const override {
    return path_ + " (" + std::to_string(layout_.count) + " " + layout_.unit + ")";
  }

 protected:
  void fetch(int64_t first, std::span<int32_t> to) const override {
    std::array<std::byte, 8192> buffer;
    const int64_t width = layout_.bytes_per_token;
    const auto each = static_cast<size_t>(static_cast<int64_t>(buffer.size()) / width);
    for (int64_t at = first; !to.empty(); at += static_cast<int64_t>(each)) {
      const std::span<int32_t> part = to.first(std::min(each, to.size()));
      file_.read(layout_.offset_bytes + at * width, buffer.data(), static_cast<int64_t>(part.size()) * width);
      decode(buffer.data(), part);
      to = to.subspan(part.size());
    }
  }

 private:
  static constexpr int64_t kBufferBytes = 1 << 18;

  int64_t find_out_of_range_in(const std::byte* from, int64_t count, int64_t vocabulary) const {
    const int64_t width = layout_.bytes_per_token;
    // Tokens are compared as unsigned integers, so a negative token is at least 2^(bits - 1).
    const auto positive = layout_.is_signed ? int64_t{1} << std::min<int64_t>(8 * width - 1, 62) : INT64_MAX;
    const auto limit = static_cast<uint64_t>(std::min(vocabulary, positive));
    return width == 1   ? first_at_least<uint8_t>(from, count, limit)
           : width == 2 ? first_at_least<uint16_t>(from, count, limit)
           : width == 4 ? first_at_least<uint32_t>(from, count, limit)
                        : first_at_least<uint64_t>(from, count, limit);
  }
  void decode(const std::byte* from, std::span<int32_t> to) const {
    const auto step = static_cast<size_t>(layout_.bytes_per_token);
    const int spare_bits = 64 - 8 * layout_.bytes_per_token;
    for (size_t i = 0; i < to.size(); ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, from + i * step, step);
      if (layout_.is_signed) bits = static_cast<uint64_t>(static_cast<int64_t>(bits << spare_bits) >> spare_bits);
      to[i] = bits > INT32_MAX ? -1 : static_cast<int32_t>(bits);
    }
  }

  std::string path_;
  InputFile file_;
  TokenLayout layout_;
  std::optional<LossRanges> ranges_;
};

}  // namespace

std::unique_ptr<TokenSource> open_stored_tokens(const std::filesystem::path& file, const TokenLayout& layout) {
  return std::make_unique<StoredTokens>(file, layout);
}

}  // namespace aliquot
