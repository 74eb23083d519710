#include "checkpoint/load_plan.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

#include "checkpoint/difference.h"
#include "checkpoint/file/convert.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kChunkElements = 32 << 10;

std::string_view path_of(const TensorEntry& tensor) { return tensor.path; }
std::string_view path_of(const StateTensor* tensor) { return tensor->path; }

/// Returns the tensor with this path in a list sorted by path, or null.
template <typename T>
const T* find(const std::vector<T>& tensors, std::string_view path) {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), path,
                                      [](const T& tensor, std::string_view at) { return path_of(tensor) < at; });
  return found != tensors.end() && path_of(*found) == path ? &*found : nullptr;
}

class LoadPlanner {
 public:
  LoadPlanner(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, LoadPlan& result)
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
      result_.quantized_conversions.push_back(*made);
      return;
    }
    const TensorEntry* have = find(manifest_.tensors, want.path);
    if (have == nullptr) {
      result_.missing.push_back(want.path);
      result_.matches.push_back({&want, nullptr});
    } else if (want.shape == have->shape && want.dtype == have->dtype) {
      result_.matches.push_back({&want, have});
    } else if (!try_convert(want, *have)) {
      result_.different.push_back(fmt::format("{} (checkpoint: {}, state: {})", want.path,
                                              describe(have->dtype, have->shape), describe(want.dtype, want.shape)));
    }
  }

  /// Plans a conversion of `have` to the dtype of `want`. Returns false if that is impossible or not allowed.
  bool try_convert(const StateTensor& want, const TensorEntry& have) {
    if (want.shape != have.shape) return false;
    std::string saved(name(have.dtype)), wanted(name(want.dtype));
    if (const TensorEntry* scales = scales_of(want, have)) {
      if (!may_convert(want.dtype, DType::kFloat32)) return false;
      result_.quantized_conversions.push_back({QuantizedConversion::Kind::kDecode, &want, want.code, &have, scales});
      saved += " with " + scales->path;
    } else if (can_be_quantized(want, have)) {
      if (!options_.allow_rounding) return false;
      result_.quantized_conversions.push_back({QuantizedConversion::Kind::kEncode, &want, want.code, &have, nullptr});
      wanted += fmt::format(" with {}{}", want.path, kScaleSuffix);
    } else {
      if (!may_convert(want.dtype, have.dtype)) return false;
      result_.matches.push_back({&result_.converting.emplace_back(want, have.dtype).tensor(), &have});
    }
    result_.converted.push_back(fmt::format("{} (checkpoint: {}, state: {})", want.path, saved, wanted));
    return true;
  }

  bool may_convert(DType to, DType from) const {
    return is_convertible(to, from) && (options_.allow_rounding || is_exactly_convertible(to, from));
  }

  /// Returns the scales of `have` if it has 8-bit codes that the state needs as floats, and otherwise null.
  const TensorEntry* scales_of(const StateTensor& want, const TensorEntry& have) const {
    if (want.code == nullptr || !is_convertible(want.dtype, DType::kFloat32)) return nullptr;
    const TensorEntry* scales = find(manifest_.tensors, want.path + std::string(kScaleSuffix));
    return is_quantized_with(have, scales) ? scales : nullptr;
  }

  static bool can_be_quantized(const StateTensor& want, const TensorEntry& have) {
    return want.code != nullptr && want.dtype == DType::kUInt8 && want.shape == have.shape &&
           is_convertible(DType::kFloat32, have.dtype);
  }

  std::optional<QuantizedConversion> scales_from_floats(const StateTensor& want) const {
    const std::string_view path = want.path;
    if (!path.ends_with(kScaleSuffix) || want.dtype != DType::kFloat32) return std::nullopt;
    const std::string_view codes_path = path.substr(0, path.size() - kScaleSuffix.size());
    const StateTensor* const* codes = find(wanted_.own, codes_path);
    const TensorEntry* floats = find(manifest_.tensors, codes_path);
    if (codes == nullptr || floats == nullptr || !can_be_quantized(**codes, *floats)) return std::nullopt;
    return QuantizedConversion{QuantizedConversion::Kind::kScales, &want, (*codes)->code, floats, nullptr};
  }

  bool is_decoded_with(const TensorEntry& scales) const {
    return std::ranges::any_of(result_.quantized_conversions,
                               [&](const QuantizedConversion& each) { return each.scales == &scales; });
  }

  const Catalogue& wanted_;
  const Manifest& manifest_;
  const LoadOptions& options_;
  LoadPlan& result_;
};

std::string format_list(std::string_view title, const std::vector<std::string>& paths) {
  constexpr size_t kMaxListed = 6;
  std::string text;
  for (size_t i = 0; i < std::min(paths.size(), kMaxListed); ++i) text += (i == 0 ? "" : ", ") + printable(paths[i]);
  if (paths.size() > kMaxListed) text += fmt::format(" and {} more", paths.size() - kMaxListed);
  return text.empty() ? text : fmt::format("; {}: {}", title, text);
}

/// Whether the checkpoint records another value than options.replaced.
bool is_replaced(const LoadOptions& options, const Manifest& manifest) {
  if (!options.replaced) return false;
  const auto saved = manifest.scalars.find(options.replaced->scalar);
  return saved != manifest.scalars.end() && saved->second != options.replaced->value;
}

/// Returns `paths` without those that are ignored because of options.replaced.
std::vector<std::string> without_replaced_state(const std::vector<std::string>& paths, const LoadOptions& options,
                                                const Manifest& manifest) {
  if (!is_replaced(options, manifest)) return paths;
  std::vector<std::string> rest;
  std::ranges::copy_if(paths, std::back_inserter(rest),
                       [&](const std::string& path) { return !path.starts_with(options.replaced->prefix); });
  return rest;
}

bool only_replaced_state_is_missing(const LoadPlan& found, const LoadOptions& options, const Manifest& manifest) {
  return is_replaced(options, manifest) && found.different.empty() &&
         without_replaced_state(found.missing, options, manifest).empty() &&
         (options.allow_extra || without_replaced_state(found.extra, options, manifest).empty());
}

}  // namespace

ConvertingTensor::ConvertingTensor(const StateTensor& target, DType from)
    : target_(target), tensor_{target.path, target.shape, from, target.pieces, this} {}

void ConvertingTensor::read(const StatePiece&, int64_t, int64_t, std::byte*) const {
  throw FaultError(
      "ConvertingTensor::read() was called, but a ConvertingTensor has no values to read: it is only for loads");
}

void ConvertingTensor::write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const {
  // Pass the target's own piece, because the target's PieceAccess may identify pieces by address.
  const StatePiece& own = target_.pieces[static_cast<size_t>(&piece - tensor_.pieces.data())];
  const int64_t from_bytes = element_bytes(tensor_.dtype), to_bytes = element_bytes(target_.dtype);
  if (target_.access == nullptr) {
    return convert(target_.dtype, own.bytes + first * to_bytes, tensor_.dtype, from, count);
  }
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(count, kChunkElements) * to_bytes));
  for (int64_t done = 0; done < count; done += kChunkElements) {
    const int64_t part = std::min(kChunkElements, count - done);
    convert(target_.dtype, chunk.data(), tensor_.dtype, from + done * from_bytes, part);
    target_.access->write(own, first + done, part, chunk.data());
  }
}

void plan_load(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, LoadPlan& result) {
  LoadPlanner(wanted, manifest, options, result).run();
}

void throw_on_differences(const LoadPlan& found, const Manifest& manifest, const std::filesystem::path& path,
                          const LoadOptions& options) {
  std::string text = format_list("different shape or dtype", found.different);
  if (!options.allow_missing) text += format_list("missing from the checkpoint", found.missing);
  if (!options.allow_extra)
    text += format_list("only in the checkpoint", without_replaced_state(found.extra, options, manifest));
  if (text.empty()) return;
  if (only_replaced_state_is_missing(found, options, manifest)) {
    const ReplacedState& replaced = *options.replaced;
    throw UsageError(fmt::format("checkpoint {}{}{}: {}, this run has {}{}", path.string(), kSavedWithAnother,
                                 replaced.scalar, describe(manifest.scalars.at(replaced.scalar)),
                                 describe(replaced.value), text));
  }
  throw UsageError(fmt::format("checkpoint {} does not fit this state{}", path.string(), text));
}

}  // namespace aliquot
