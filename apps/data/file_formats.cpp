#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <string_view>

#include "apps/data/stored_tokens.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using namespace std::string_view_literals;

constexpr int64_t kMaxNumpyHeaderBytes = 1 << 16;  // the header of a one-dimensional array is much shorter
constexpr int64_t kLlmcHeaderBytes = 1024;         // 256 32-bit words: magic, version, number of tokens, zeros

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UsageError(fmt::format("{}: {}.", path.string(), why));
}

/// Returns the value of type T at `offset`, or 0 if the file ends before the end of the value.
template <typename T>
T at(const InputFile& file, int64_t offset) {
  T value = 0;
  if (offset + static_cast<int64_t>(sizeof value) <= file.size_bytes()) file.read(offset, &value, sizeof value);
  return value;
}

std::string text_at(const InputFile& file, int64_t offset, int64_t count) {
  offset = std::min(offset, file.size_bytes());
  return file.read_text(offset, std::min(count, file.size_bytes() - offset));
}

constexpr std::string_view kHdf5Signature = "\x89HDF\r\n\x1a\n";

struct OtherFormat {
  std::string_view beginning, what, advice;
};
constexpr std::string_view kDecompress = "decompress it first";
constexpr std::string_view kTokenize = "write its tokens as raw integers, .npy or HDF5";
constexpr std::array kOtherFormats = {
    OtherFormat{"\x28\xb5\x2f\xfd"sv, "a zstd file", kDecompress},
    OtherFormat{"\xfd"
                "7zXZ\0"sv,
                "an xz file", kDecompress},
    OtherFormat{"BZh91AY&SY"sv, "a bzip2 file", kDecompress},
    OtherFormat{"\x04\x22\x4d\x18"sv, "an lz4 file", kDecompress},
    OtherFormat{"PK\x03\x04"sv, "a zip archive (the format of .npz files and PyTorch's .pt files)", "extract it first"},
    OtherFormat{"PAR1"sv, "a parquet file", kTokenize},
    OtherFormat{"ARROW1\0\0"sv, "an arrow file", kTokenize},
    OtherFormat{kHdf5Signature, "an HDF5 file", "rename it to end in .h5 or .hdf5"},
    OtherFormat{"MMIDIDX\0\0"sv, "the index of a Megatron data set", "use the .bin file of the same name"},
};

struct LlmcKind {
  int32_t magic;
  int32_t version;
  int bytes_per_token;  // 0 for files without tokens
  std::string_view what;
};
constexpr std::array kLlmcKinds = {
    LlmcKind{20240520, 1, 2, "16-bit tokens in the format of llm.c"},
    LlmcKind{20240801, 7, 4, "32-bit tokens in the format of llm.c"},
    LlmcKind{20240326, 0, 0, "a file of model weights in the format of llm.c"},
    LlmcKind{20240327, 0, 0, "a file of debug data in the format of llm.c"},
    LlmcKind{20240328, 0, 0, "a tokenizer file in the format of llm.c"},
    LlmcKind{20240522, 0, 0, "an evaluation data set in the format of llm.c"},
    LlmcKind{20240527, 0, 0, "a file of optimizer state in the format of llm.c"},
    LlmcKind{20240803, 0, 0, "a file of model weights in the format of llm.c"},
};

const LlmcKind* llmc_kind(const InputFile& file) {
  const auto found = std::ranges::find(kLlmcKinds, at<int32_t>(file, 0), &LlmcKind::magic);
  return found == kLlmcKinds.end() ? nullptr : &*found;
}

/// Whether the file begins like a gzip file. The two magic bytes are not enough, because a file of tokens may begin
/// with them. The compression method and the reserved flags must match too.
bool is_gzip(const InputFile& file) {
  return file.size_bytes() > 18 && text_at(file, 0, 3) == "\x1f\x8b\x08"sv && (at<uint8_t>(file, 3) & 0xe0) == 0;
}

/// Whether the file begins like a safetensors file: an 8-byte length, then a JSON object of that length.
bool is_safetensors(const InputFile& file) {
  const auto length = at<uint64_t>(file, 0);
  return length >= 2 && length <= static_cast<uint64_t>(file.size_bytes()) - 8 && text_at(file, 8, 2) == "{\""sv;
}

void check_payload_size(const InputFile& file, const std::filesystem::path& path, const TokenLayout& layout) {
  const int64_t due = layout.offset_bytes + layout.count * layout.bytes_per_token;
  if (due == file.size_bytes()) return;
  refuse(path, fmt::format("the header declares {} {}, which need a file of {} bytes, but the file has {}: {}",
                           layout.count, layout.unit, due, file.size_bytes(),
                           file.size_bytes() < due ? "it is truncated" : "other data follows the tokens"));
}

TokenLayout llmc_layout(const InputFile& file, const std::filesystem::path& path, const LlmcKind& kind) {
  const auto version = at<int32_t>(file, 4), count = at<int32_t>(file, 8);
  if (version != kind.version)
    refuse(path, fmt::format("the header declares {0} of version {1}: expected version {2}", kind.what, version,
                             kind.version));
  if (count < 1) refuse(path, fmt::format("the header declares {} {}: expected 1 or more", count, kind.what));
  TokenLayout layout{.offset_bytes = kLlmcHeaderBytes,
                     .count = count,
                     .bytes_per_token = kind.bytes_per_token,
                     .unit = std::string(kind.what)};
  check_payload_size(file, path, layout);
  return layout;
}

/// Returns the text after `'name':` in `header`, which is a Python dictionary as text; empty if the name is missing.
std::string_view python_value(std::string_view header, std::string_view name) {
  const size_t found = header.find(fmt::format("'{}':", name));
  if (found == std::string_view::npos) return {};
  header.remove_prefix(found + name.size() + 3);
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

/// Returns the width and signedness of tokens whose type NumPy describes as `descr`, such as '<u2'. Returns nothing if
/// the type is not a little-endian integer.
std::optional<TokenLayout> numpy_type(std::string_view descr) {
  if (descr.size() < 5 || descr[0] != '\'' || descr[4] != '\'') return std::nullopt;
  const bool is_integer = descr[2] == 'u' || descr[2] == 'i';
  const int bytes = descr[3] - '0';
  const bool is_little = descr[1] == '<' || (bytes == 1 && descr[1] == '|');
  if (!is_integer || !is_little || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) return std::nullopt;
  return TokenLayout{.bytes_per_token = bytes,
                     .is_signed = descr[2] == 'i',
                     .unit = fmt::format("{}-bit integers in NumPy's format", 8 * bytes)};
}

/// Returns N if `shape` is the text "(N,)", otherwise nothing.
std::optional<int64_t> numpy_count(std::string_view shape) {
  int64_t count = -1;
  if (shape.empty() || shape[0] != '(') return std::nullopt;
  const auto [end, error] = std::from_chars(shape.data() + 1, shape.data() + shape.size(), count);
  const std::string_view rest(end, static_cast<size_t>(shape.data() + shape.size() - end));
  return error == std::errc() && count >= 0 && rest.starts_with(",)") ? std::optional(count) : std::nullopt;
}

TokenLayout numpy_layout(const InputFile& file, const std::filesystem::path& path) {
  const bool is_first = at<uint8_t>(file, 6) == 1;
  const int64_t begin = is_first ? 10 : 12;
  const int64_t length = is_first ? at<uint16_t>(file, 8) : at<uint32_t>(file, 8);
  if (begin + length > file.size_bytes()) refuse(path, "the header of the .npy file is truncated");
  const std::string header = text_at(file, begin, std::min(length, kMaxNumpyHeaderBytes));
  auto layout = numpy_type(python_value(header, "descr"));
  const auto count = numpy_count(python_value(header, "shape"));
  if (!layout || !count) {
    refuse(path,
           "expected a one-dimensional .npy array of little-endian integers: save it with "
           "numpy.save(file, tokens.astype('<u2').ravel()), or '<u4'");
  }
  if (*count > file.size_bytes())
    refuse(path, fmt::format("the header declares {} tokens, but the file has {} bytes: it is truncated", *count,
                             file.size_bytes()));
  if (*count == 0) refuse(path, "the array has no elements");
  layout->offset_bytes = begin + length;
  layout->count = *count;
  check_payload_size(file, path, *layout);
  return *layout;
}

/// Whether the file looks like an array of integers of type Word: no word exceeds `small`, and the lower half of at
/// least one word exceeds 15. Without the second condition, a file of narrower tokens that are all at most 15 could
/// match too. Checks at most kMaxWords words, because in nearly all other files one of the first few words exceeds
/// `small`.
template <typename Word>
bool looks_like(const InputFile& file, Word small) {
  constexpr int64_t kMinWords = 32, kMaxWords = 1 << 20;
  constexpr Word kTiny = 15, kLowerHalf = static_cast<Word>(~Word{0}) >> (4 * sizeof(Word));
  const auto width = static_cast<int64_t>(sizeof(Word));
  const int64_t count = file.size_bytes() / width;
  if (count < kMinWords) return false;
  std::array<Word, 1024> words;
  const auto all = static_cast<size_t>(std::min(count, kMaxWords));
  bool has_lower_half = false;
  for (size_t i = 0; i < all; ++i) {
    const size_t at = i % words.size();
    if (at == 0)
      file.read(static_cast<int64_t>(i) * width, words.data(),
                static_cast<int64_t>(std::min(words.size(), all - i)) * width);
    if (words[at] > small) return false;
    has_lower_half = has_lower_half || (words[at] & kLowerHalf) > kTiny;
  }
  return has_lower_half;
}

}  // namespace

bool has_hdf5_signature(const InputFile& file) { return text_at(file, 0, kHdf5Signature.size()) == kHdf5Signature; }

void refuse_other_formats(const InputFile& file, const std::filesystem::path& path) {
  const auto refuse_as = [&](std::string_view what, std::string_view advice) {
    refuse(path, fmt::format("this is {}, not a file of tokens: {}", what, advice));
  };
  for (const OtherFormat& other : kOtherFormats) {
    if (text_at(file, 0, static_cast<int64_t>(other.beginning.size())) == other.beginning)
      refuse_as(other.what, other.advice);
  }
  if (is_gzip(file)) refuse_as("a gzip file", kDecompress);
  if (is_safetensors(file)) refuse_as("a safetensors file of weights", "load it with --init");
  if (const LlmcKind* kind = llmc_kind(file); kind != nullptr && kind->bytes_per_token == 0)
    refuse_as(kind->what, "use a .bin file with tokens");
}

std::optional<TokenLayout> layout_of_header(const InputFile& file, const std::filesystem::path& path) {
  if (text_at(file, 0, 6) == "\x93NUMPY"sv) return numpy_layout(file, path);
  const LlmcKind* kind = llmc_kind(file);
  return kind == nullptr ? std::nullopt : std::optional(llmc_layout(file, path, *kind));
}

void refuse_wider_integers(const InputFile& file, const std::filesystem::path& path, const TokenLayout& layout) {
  constexpr uint32_t kLargestVocabulary = (1 << 20) - 1;  // no known tokenizer has more entries
  const auto refuse_as = [&](int bits, std::string_view advice) {
    refuse(path,
           fmt::format(
               "expected {}, but the file looks like {}-bit integers (the upper half of each is 0 or nearly 0): {}",
               layout.unit, bits, advice));
  };
  if (layout.bytes_per_token < 8 && looks_like<uint64_t>(file, kLargestVocabulary))
    refuse_as(64, "write 16-bit tokens to a .bin file or 32-bit tokens to a .u32 file, or save them as .npy");
  if (layout.bytes_per_token < 4 && looks_like<uint32_t>(file, kLargestVocabulary))
    refuse_as(32, "rename it to end in .u32; if it has 16-bit tokens, save them as .npy");
  if (layout.bytes_per_token < 2 && looks_like<uint16_t>(file, 255))
    refuse_as(16, "rename it to end in .bin; if it has 8-bit tokens, save them as 16-bit .npy");
}

}  // namespace aliquot
