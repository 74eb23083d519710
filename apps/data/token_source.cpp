#include "apps/data/token_source.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

#include "apps/data/stored_tokens.h"
#include "kernels/system/error.h"

namespace aliquot {

void TokenSource::read(int64_t first, std::span<int32_t> to, int64_t vocabulary) const {
  fetch(first, to);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] < 0 || to[i] >= vocabulary) refuse(first + static_cast<int64_t>(i), vocabulary);
  }
}

std::optional<int64_t> TokenSource::find_out_of_range(int64_t, int64_t, int64_t) const { return std::nullopt; }

void TokenSource::refuse(int64_t position, int64_t vocabulary) const {
  int32_t found = 0;
  fetch(position, {&found, 1});
  const std::string value = found < 0 ? "negative or above 2147483647" : std::to_string(found);
  const std::vector<TokenPart> all = parts();
  const auto behind = std::ranges::upper_bound(all, position, {}, &TokenPart::first);
  const int64_t first = std::prev(behind)->first;
  const std::string file = describe_part(static_cast<size_t>(behind - all.begin()) - 1);
  throw UsageError("Token " + std::to_string(position - first) + " of " + file + " is " + value +
                   ", but the model's vocabulary has " + std::to_string(vocabulary) +
                   " entries: use a larger --vocab, or data tokenized for this model.");
}

namespace {

std::unique_ptr<TokenSource> open_by_name(const std::filesystem::path& file) {
  const auto extension = file.extension();
  const InputFile mapped(file);
  const bool is_hdf5 = extension == ".h5" || extension == ".hdf5";
  if (!is_hdf5 || !has_hdf5_signature(mapped)) refuse_other_formats(mapped, file);
  if (is_hdf5) return open_hdf5_tokens(file);
  if (const auto layout = layout_of_header(mapped, file)) return open_stored_tokens(file, *layout);
  for (const char* integers :
       {".i16", ".i32", ".i64", ".u64", ".int16", ".int32", ".int64", ".uint16", ".uint32", ".uint64"}) {
    if (extension != integers) continue;
    throw UsageError(fmt::format("{}: unknown suffix {}: expected raw tokens as .u16, .bin (16 bits) or .u32.",
                                 file.string(), integers));
  }
  TokenLayout layout;
  if (extension == ".bin") layout = {.bytes_per_token = 2, .unit = "16-bit tokens"};
  if (extension == ".u16") layout = {.bytes_per_token = 2, .unit = "16-bit tokens"};
  if (extension == ".u32") layout = {.bytes_per_token = 4, .unit = "32-bit tokens"};
  layout.is_text = layout.bytes_per_token == 1;
  refuse_wider_integers(mapped, file, layout);
  return open_stored_tokens(file, layout);
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
