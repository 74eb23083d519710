#include "checkpoint/comparison.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

#include "checkpoint/file/convert.h"
#include "kernels/system/error.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

constexpr int64_t kElementsAtOnce = 32 << 10;

std::string_view path_of(const TensorEntry& tensor) { return tensor.path; }
std::string_view path_of(const StateTensor* tensor) { return tensor->path; }

/// The one of that path in a list in order of path, or null.
template <typename T>
const T* find(const std::vector<T>& tensors, std::string_view path) {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), path,
                                      [](const T& tensor, std::string_view at) { return path_of(tensor) < at; });
  return found != tensors.end() && path_of(*found) == path ? &*found : nullptr;
}

class Comparer {
 public:
  Comparer(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, Comparison& result)
      : wanted_(wanted), manifest_(manifest), options_(options), result_(result) {}

  void run() {
    for (const StateTensor* want : wanted_.own) add(*want);
    for (const TensorEntry& have : manifest_.tensors) {
      if (find(wanted_.own, have.path) == nullptr && !is_decoded_with(have)) result_.extra.push_back(have.path);
    }
  }

 private:
  void add(const StateTensor& want) {
    if (const auto made = scales_from_floats(want)) {
      result_.recodings.push_back(*made);
      return;
    }
    const TensorEntry* have = find(manifest_.tensors, want.path);
    if (have == nullptr) {
      result_.missing.push_back(want.path);
      result_.matches.push_back({&want, nullptr});
    } else if (want.shape == have->shape && want.dtype == have->dtype) {
      result_.matches.push_back({&want, have});
    } else if (!convert(want, *have)) {
      result_.different.push_back(fmt::format("{} (there {}, here {})", want.path, describe(have->dtype, have->shape),
                                              describe(want.dtype, want.shape)));
    }
  }

  /// The tensor that takes what the checkpoint has otherwise, if that may be.
  bool convert(const StateTensor& want, const TensorEntry& have) {
    if (want.shape != have.shape) return false;
    std::string there(name(have.dtype)), here(name(want.dtype));
    if (const TensorEntry* scales = scales_of(want, have)) {
      if (!may(want.dtype, DType::kFloat32)) return false;
      result_.recodings.push_back({Recoding::Kind::kDecode, &want, want.code, &have, scales});
      there += " with " + scales->path;
    } else if (becomes_codes(want, have)) {
      if (!options_.allow_rounding) return false;
      result_.recodings.push_back({Recoding::Kind::kEncode, &want, want.code, &have, nullptr});
      here += fmt::format(" with {}{}", want.path, kScaleSuffix);
    } else {
      if (!may(want.dtype, have.dtype)) return false;
      result_.matches.push_back({&result_.converting.emplace_back(want, have.dtype).tensor(), &have});
    }
    result_.converted.push_back(fmt::format("{} (there {}, here {})", want.path, there, here));
    return true;
  }

  bool may(DType to, DType from) const {
    return converts(to, from) && (options_.allow_rounding || converts_exactly(to, from));
  }

  /// The scales of codes that the state wants as floats; null where it does not, or the codes are none of ours.
  const TensorEntry* scales_of(const StateTensor& want, const TensorEntry& have) const {
    if (want.code == nullptr || !converts(want.dtype, DType::kFloat32)) return nullptr;
    const TensorEntry* scales = find(manifest_.tensors, want.path + std::string(kScaleSuffix));
    return is_coded_as(have, scales) ? scales : nullptr;
  }

  static bool becomes_codes(const StateTensor& want, const TensorEntry& have) {
    return want.code != nullptr && want.dtype == DType::kUInt8 && want.shape == have.shape &&
           converts(DType::kFloat32, have.dtype);
  }

  std::optional<Recoding> scales_from_floats(const StateTensor& want) const {
    const std::string_view path = want.path;
    if (!path.ends_with(kScaleSuffix) || want.dtype != DType::kFloat32) return std::nullopt;
    const std::string_view codes_path = path.substr(0, path.size() - kScaleSuffix.size());
    const StateTensor* const* codes = find(wanted_.own, codes_path);
    const TensorEntry* floats = find(manifest_.tensors, codes_path);
    if (codes == nullptr || floats == nullptr || !becomes_codes(**codes, *floats)) return std::nullopt;
    return Recoding{Recoding::Kind::kScales, &want, (*codes)->code, floats, nullptr};
  }

  bool is_decoded_with(const TensorEntry& scales) const {
    return std::ranges::any_of(result_.recodings, [&](const Recoding& each) { return each.scales == &scales; });
  }

  const Catalogue& wanted_;
  const Manifest& manifest_;
  const LoadOptions& options_;
  Comparison& result_;
};

std::string listed(std::string_view title, const std::vector<std::string>& paths) {
  constexpr size_t kMostNamed = 6;
  std::string text;
  for (size_t i = 0; i < std::min(paths.size(), kMostNamed); ++i) text += (i == 0 ? "" : ", ") + printable(paths[i]);
  if (paths.size() > kMostNamed) text += fmt::format(" and {} more", paths.size() - kMostNamed);
  return text.empty() ? text : fmt::format("; {}: {}", title, text);
}

/// Those that count: of what belongs to another kind of state, none.
std::vector<std::string> counted(const std::vector<std::string>& paths, const LoadOptions& options,
                                 const Manifest& manifest) {
  const auto& may = options.replaced;
  if (!may) return paths;
  const auto there = manifest.scalars.find(may->scalar);
  if (there == manifest.scalars.end() || there->second == may->value) return paths;
  std::vector<std::string> rest;
  std::ranges::copy_if(paths, std::back_inserter(rest),
                       [&](const std::string& path) { return !path.starts_with(may->prefix); });
  return rest;
}

}  // namespace

ConvertingTensor::ConvertingTensor(const StateTensor& target, DType from)
    : target_(target), tensor_{target.path, target.shape, from, target.pieces, this} {}

void ConvertingTensor::read(const StatePiece&, int64_t, int64_t, std::byte*) const {
  throw FaultError("a tensor that is only loaded was to be saved");
}

void ConvertingTensor::write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const {
  // The target's own piece: its access may know it by where it stands.
  const StatePiece& own = target_.pieces[static_cast<size_t>(&piece - tensor_.pieces.data())];
  const int64_t from_bytes = element_bytes(tensor_.dtype), to_bytes = element_bytes(target_.dtype);
  if (target_.access == nullptr) {
    return convert(target_.dtype, own.bytes + first * to_bytes, tensor_.dtype, from, count);
  }
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(count, kElementsAtOnce) * to_bytes));
  for (int64_t done = 0; done < count; done += kElementsAtOnce) {
    const int64_t part = std::min(kElementsAtOnce, count - done);
    convert(target_.dtype, chunk.data(), tensor_.dtype, from + done * from_bytes, part);
    write_piece(target_, own, first + done, std::span(chunk).first(static_cast<size_t>(part * to_bytes)));
  }
}

void compare(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, Comparison& result) {
  Comparer(wanted, manifest, options, result).run();
}

void refuse_differences(const Comparison& found, const Manifest& manifest, const std::filesystem::path& path,
                        const LoadOptions& options) {
  std::string text = listed("of another shape or dtype", found.different);
  if (!options.allow_missing) text += listed("missing there", found.missing);
  if (!options.allow_extra) text += listed("only there", counted(found.extra, options, manifest));
  if (!text.empty()) throw UsageError(fmt::format("checkpoint {} does not fit this state{}", path.string(), text));
}

}  // namespace aliquot
