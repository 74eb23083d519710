#include "apps/data/mapped_tokens.h"

#include <cstring>

#include "apps/data/mapped_file.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

class MappedTokens : public TokenSource {
 public:
  MappedTokens(const std::filesystem::path& path, TokenLayout layout)
      : path_(path.string()), file_(path), layout_(std::move(layout)) {
    const int64_t bytes = file_.size_bytes() - layout_.offset_bytes;
    if (layout_.count < 0) {
      if (bytes % layout_.bytes_per_token != 0) {
        throw UsageError(path_ + ": its " + std::to_string(bytes) + " bytes do not divide into " + layout_.unit +
                         "; it is cut short, or not a file of tokens.");
      }
      layout_.count = bytes / layout_.bytes_per_token;
    }
    if (layout_.count > bytes / layout_.bytes_per_token) {
      throw UsageError(path_ + ": the file is shorter than its tokens; it is cut short.");
    }
  }

  int64_t token_count() const override { return layout_.count; }
  std::string describe() const override {
    return path_ + " (" + std::to_string(layout_.count) + " " + layout_.unit + ")";
  }

 protected:
  void fetch(int64_t first, std::span<int32_t> to) const override {
    const int64_t end = layout_.offset_bytes + (first + static_cast<int64_t>(to.size())) * layout_.bytes_per_token;
    if (file_.size_now_bytes() < end)
      throw FaultError(path_ + " has become shorter since the run began: its tokens are no longer there.");
    const std::byte* from = file_.data() + layout_.offset_bytes + first * layout_.bytes_per_token;
    const auto step = static_cast<size_t>(layout_.bytes_per_token);
    const int spare_bits = 64 - 8 * layout_.bytes_per_token;
    for (size_t i = 0; i < to.size(); ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, from + i * step, step);
      if (layout_.is_signed) bits = static_cast<uint64_t>(static_cast<int64_t>(bits << spare_bits) >> spare_bits);
      to[i] = bits > INT32_MAX ? -1 : static_cast<int32_t>(bits);
    }
  }

 private:
  std::string path_;
  MappedFile file_;
  TokenLayout layout_;
};

}  // namespace

std::unique_ptr<TokenSource> open_mapped_tokens(const std::filesystem::path& file, const TokenLayout& layout) {
  return std::make_unique<MappedTokens>(file, layout);
}

}  // namespace aliquot
