#include "checkpoint/difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/file/convert.h"
#include "sharding/state.h"

namespace aliquot {
namespace {

// A comparison uses two buffers of this size.
constexpr int64_t kChunkBytes = kStagingChunkBytes;

/// Accumulates the differences of one tensor, chunk by chunk.
class TensorComparer {
 public:
  TensorComparer(const TensorEntry& tensor, TensorDifference& result) : tensor_(tensor), result_(result) {}

  void add(std::span<const std::byte> a, std::span<const std::byte> b, int64_t first) {
    const int64_t width = element_bytes(tensor_.dtype), count = static_cast<int64_t>(a.size()) / width;
    const bool same = std::memcmp(a.data(), b.data(), a.size()) == 0;
    for (int64_t i = 0; i < count; ++i) {
      const std::byte *at_a = a.data() + i * width, *at_b = b.data() + i * width;
      const double value_a = element_value(tensor_.dtype, at_a);
      if (std::isfinite(value_a)) squares_ += value_a * value_a;
      if (same || std::memcmp(at_a, at_b, static_cast<size_t>(width)) == 0) continue;
      add_difference(first + i, value_a, element_value(tensor_.dtype, at_b));
    }
  }

  void finish() {
    if (difference_squares_ > 0) result_.relative_norm = std::sqrt(difference_squares_ / squares_);
  }

 private:
  void add_difference(int64_t element, double a, double b) {
    ++result_.different_count;
    const double size = a == b ? 0 : std::abs(a - b);  // inf - inf would be NaN
    difference_squares_ += size * size;
    const bool worse = result_.worst_element < 0 || (std::isnan(size) && !std::isnan(result_.max_difference)) ||
                       size > result_.max_difference;
    if (!worse) return;
    result_.worst_element = element;
    result_.max_difference = size;
    result_.a = a;
    result_.b = b;
  }

  const TensorEntry& tensor_;
  TensorDifference& result_;
  double squares_ = 0, difference_squares_ = 0;
};

/// Compares a tensor that has the same shape and dtype in both checkpoints. If all bits are equal, different_count is
/// 0.
TensorDifference compare_elements(const CheckpointReader& a, const CheckpointReader& b, const TensorEntry& in_a,
                                  const TensorEntry& in_b) {
  TensorDifference result{
      .path = in_a.path, .reason = {}, .element_count = in_a.size_bytes / element_bytes(in_a.dtype)};
  TensorComparer comparer(in_a, result);
  std::vector<std::byte> from_a(static_cast<size_t>(std::min(in_a.size_bytes, kChunkBytes))), from_b(from_a.size());
  for (int64_t done = 0; done < in_a.size_bytes; done += kChunkBytes) {
    const auto count = static_cast<size_t>(std::min(kChunkBytes, in_a.size_bytes - done));
    a.read(std::span(from_a).first(count), in_a.file_offset + done);
    b.read(std::span(from_b).first(count), in_b.file_offset + done);
    comparer.add(std::span(from_a).first(count), std::span(from_b).first(count), done / element_bytes(in_a.dtype));
  }
  comparer.finish();
  return result;
}

bool same_bits(const Scalar& a, const Scalar& b) {
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  if (a.index() != b.index()) return false;
  if (const auto* real = std::get_if<double>(&a)) return bits(*real) == bits(std::get<double>(b));
  if (const auto* list = std::get_if<std::vector<double>>(&a)) {
    const auto& other = std::get<std::vector<double>>(b);
    return std::equal(list->begin(), list->end(), other.begin(), other.end(),
                      [&](double x, double y) { return bits(x) == bits(y); });
  }
  return a == b;
}

std::vector<std::string> compare_scalars(const Manifest& a, const Manifest& b) {
  std::vector<std::string> lines;
  if (a.step != b.step) lines.push_back(fmt::format("step: {} and {}", a.step, b.step));
  std::map<std::string, std::pair<const Scalar*, const Scalar*>> all;
  for (const auto& [name, value] : a.scalars) all[name].first = &value;
  for (const auto& [name, value] : b.scalars) all[name].second = &value;
  const auto text = [](const Scalar* value) { return value == nullptr ? std::string("nothing") : describe(*value); };
  for (const auto& [name, values] : all) {
    const auto [one, other] = values;
    if (one != nullptr && other != nullptr && same_bits(*one, *other)) continue;
    lines.push_back(fmt::format("{}: {} and {}", printable(name), text(one), text(other)));
  }
  return lines;
}

}  // namespace

CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b) {
  CheckpointDifference result;
  result.scalars = compare_scalars(a.manifest(), b.manifest());
  const auto &left = a.manifest().tensors, &right = b.manifest().tensors;
  for (size_t i = 0, j = 0; i < left.size() || j < right.size();) {
    if (j == right.size() || (i < left.size() && left[i].path < right[j].path)) {
      result.tensors.push_back({.path = left[i].path, .reason = "only in the first"});
      ++i;
    } else if (i == left.size() || right[j].path < left[i].path) {
      result.tensors.push_back({.path = right[j].path, .reason = "only in the second"});
      ++j;
    } else {
      const TensorEntry &one = left[i++], &other = right[j++];
      if (one.shape != other.shape || one.dtype != other.dtype) {
        const std::string reason =
            fmt::format("{} and {}", describe(one.dtype, one.shape), describe(other.dtype, other.shape));
        result.tensors.push_back({.path = one.path, .reason = reason});
        continue;
      }
      TensorDifference found = compare_elements(a, b, one, other);
      if (found.different_count > 0) result.tensors.push_back(std::move(found));
    }
  }
  return result;
}

std::string describe(const TensorDifference& d) {
  if (!d.reason.empty()) return d.reason;
  return fmt::format(
      "{} of {} elements differ, by at most {:.6g} (element {}: {:.9g} and {:.9g}); the norm of the "
      "difference is {:.3g} times the norm of the first tensor",
      d.different_count, d.element_count, d.max_difference, d.worst_element, d.a, d.b, d.relative_norm);
}

std::string describe(const Scalar& scalar) {
  if (const auto* text = std::get_if<std::string>(&scalar)) return printable(*text);
  if (const auto* integer = std::get_if<int64_t>(&scalar)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&scalar)) return fmt::format("{}", *real);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&scalar)) return fmt::format("[{}]", fmt::join(*list, ", "));
  return fmt::format("[{}]", fmt::join(std::get<std::vector<double>>(scalar), ", "));
}

}  // namespace aliquot
