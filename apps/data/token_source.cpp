#include "apps/data/token_source.h"

#include "apps/data/mapped_tokens.h"
#include "kernels/error.h"

namespace aliquot {

void TokenSource::read(int64_t first, std::span<int32_t> to, int64_t vocabulary) const {
  fetch(first, to);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] >= 0 && to[i] < vocabulary) continue;
    const std::string value = to[i] < 0 ? "negative or beyond 32 bits" : std::to_string(to[i]);
    throw UsageError("Token " + std::to_string(first + static_cast<int64_t>(i)) + " of " + describe() + " is " + value +
                     ", and the model's vocabulary has " + std::to_string(vocabulary) +
                     " entries: give --vocab, or data made for this model.");
  }
}

namespace {

std::unique_ptr<TokenSource> open_by_name(const std::filesystem::path& file) {
  const auto extension = file.extension();
  if (extension == ".h5" || extension == ".hdf5") return open_hdf5_tokens(file);
  if (extension == ".bin") return open_mapped_tokens(file, {.bytes_per_token = 2, .unit = "16-bit tokens"});
  return open_mapped_tokens(file, TokenLayout{});
}

}  // namespace

std::unique_ptr<TokenSource> open_token_source(const std::filesystem::path& file, const std::string& option) {
  try {
    return open_by_name(file);
  } catch (const UsageError& error) {
    throw UsageError(option + " " + error.what());
  }
}

}  // namespace aliquot
