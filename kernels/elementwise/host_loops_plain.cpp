// The reference loops in plain C++ for every processor. All other tables must give the same bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/elementwise/block_digest.h"
#include "kernels/elementwise/block_norm_loops.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/host_loops_tables.h"
#include "kernels/formats/element.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/split_master.h"

namespace aliquot {
namespace {

[[noreturn]] void throw_unsupported_dtype(std::string_view loop, DType dtype) {
  throw std::logic_error(std::string(loop) + " does not support dtype " + std::string(name(dtype)));
}

/// Conversion with defined results: 0 for NaN, and the nearest limit for values out of range. A plain C++ conversion is
/// undefined in both cases.
template <typename Integer>
Integer to_integer(float value) {
  using Limits = std::numeric_limits<Integer>;
  if (std::isnan(value)) return 0;
  return static_cast<Integer>(std::clamp(value, static_cast<float>(Limits::min()), static_cast<float>(Limits::max())));
}

// Calls work(Type{}) with the element type of `dtype`.
template <typename Work>
void with_type(std::string_view loop, DType dtype, Work work) {
  switch (dtype) {
    case DType::kFloat32: return work(Fp32Element{});
    case DType::kBFloat16: return work(Bf16Element{});
    case DType::kFloat16: return work(Fp16Element{});
    default: throw_unsupported_dtype(loop, dtype);
  }
}

void copy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(size_bytes));
}

void fill(void* to, DType dtype, float value, int64_t count) {
  const uint64_t pattern = fill_pattern(dtype, value);
  auto* bytes = static_cast<std::byte*>(to);
  const int64_t size_bytes = count * element_bytes(dtype);
  int64_t i = 0;
  for (; i + 8 <= size_bytes; i += 8) std::memcpy(bytes + i, &pattern, 8);
  if (i < size_bytes) std::memcpy(bytes + i, &pattern, static_cast<std::size_t>(size_bytes - i));
}

void scale(float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void add(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void axpy(float* y, float a, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

template <typename To, typename From>
void cast_range(void* to, const void* from, int64_t count) {
  auto* out = static_cast<typename To::Storage*>(to);
  const auto* in = static_cast<const typename From::Storage*>(from);
  for (int64_t i = 0; i < count; ++i) out[i] = To::store(From::load(in[i]));
}

void cast(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  with_type("cast", to_dtype, [&](auto to_type) {
    with_type("cast", from_dtype, [&](auto from_type) {
      if (to_dtype == from_dtype) return copy(to, from, count * element_bytes(to_dtype));
      cast_range<decltype(to_type), decltype(from_type)>(to, from, count);
    });
  });
}

void split(uint16_t* high, int16_t* low, const float* master, int64_t count) {
  if (low == nullptr) {
    for (int64_t i = 0; i < count; ++i) high[i] = master_high(master[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    high[i] = master_high(master[i]);
    low[i] = master_low(master[i]);
  }
}

void merge(float* master, const uint16_t* high, const int16_t* low, int64_t count) {
  for (int64_t i = 0; i < count; ++i) master[i] = merge_master(high[i], low[i]);
}

double squares_of_block(const float* x, int64_t count) {
  float v[kBlockElements] = {};
  for (int64_t i = 0; i < count; ++i) v[i] = x[i] * x[i];
  for (int64_t half = kBlockElements / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

void block_squares(double* sums, const float* x, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    sums[begin / kBlockElements] = squares_of_block(x + begin, std::min(kBlockElements, count - begin));
  }
}

// The stack is a binary counter of partial sums. After source r, it has one subtree for each bit that is set in r + 1,
// the largest subtree first. At the end the remaining subtrees are added from the right. The result is the sum along
// the aligned binary tree, in which missing leaves are left out.
template <typename From>
void sum_block(float* out, const TreeSum& sum, int64_t begin, int64_t count) {
  constexpr int kLevels = 13;
  static_assert(int64_t{1} << (kLevels - 1) >= kMaxTreeSources);
  float stack[kLevels][kBlockElements];
  int depth = 0;
  const auto join = [&] {
    --depth;
    // cppcheck-suppress legacyUninitvar ; only levels that a source has filled are joined
    for (int64_t i = 0; i < count; ++i) stack[depth - 1][i] += stack[depth][i];
  };
  for (std::size_t r = 0; r < sum.bases.size(); ++r) {
    const auto* leaf = reinterpret_cast<const typename From::Storage*>(sum.bases[r] + sum.offset_bytes) + begin;
    for (int64_t i = 0; i < count; ++i) stack[depth][i] = From::load(leaf[i]);
    ++depth;
    for (std::size_t carry = r + 1; carry % 2 == 0; carry /= 2) join();
  }
  while (depth > 1) join();
  for (int64_t i = 0; i < count; ++i) out[i] = stack[0][i];
}

void sum_tree(const TreeSum& sum, int64_t begin, int64_t end) {
  const auto source_count = static_cast<int64_t>(sum.bases.size());
  if (source_count < 1 || source_count > kMaxTreeSources) {
    throw std::logic_error("sum_tree requires 1 to " + std::to_string(kMaxTreeSources) + " sources, not " +
                           std::to_string(source_count));
  }
  with_type("sum_tree", sum.from_dtype, [&](auto from) {
    with_type("sum_tree", sum.to_dtype, [&](auto to) {
      using To = decltype(to);
      float block[kBlockElements];
      for (int64_t first = begin; first < end; first += kBlockElements) {
        const int64_t count = std::min(kBlockElements, end - first);
        sum_block<decltype(from)>(block, sum, first, count);
        if (sum.factor != 1.0f) scale(block, sum.factor, count);
        if (sum.block_squares != nullptr) block_squares(sum.block_squares + first / kBlockElements, block, count);
        cast_range<To, Fp32Element>(static_cast<typename To::Storage*>(sum.to) + first, block, count);
      }
    });
  });
}

template <typename Bits>
int64_t find_exponent(const void* x, Bits exponent, int64_t count) {
  const auto* elements = static_cast<const std::byte*>(x);
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, elements + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    if ((bits & exponent) == exponent) return i;
  }
  return count;
}

int64_t find_nonfinite(const void* x, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kFloat64: return find_exponent<uint64_t>(x, 0x7ff0000000000000u, count);
    case DType::kFloat32: return find_exponent<uint32_t>(x, 0x7f800000u, count);
    case DType::kBFloat16: return find_exponent<uint16_t>(x, 0x7f80u, count);
    case DType::kFloat16: return find_exponent<uint16_t>(x, 0x7c00u, count);
    default: throw_unsupported_dtype("find_nonfinite", dtype);
  }
}

/// Returns the digest of a block. Bytes after the end of its last word count as zeros.
uint64_t block_digest(const std::byte* block, int64_t size_bytes) {
  constexpr int64_t kWordBytes = sizeof(uint32_t);
  uint32_t lanes[kDigestLanes] = {};
  for (int64_t i = 0; i * kWordBytes < size_bytes; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, block + i * kWordBytes, static_cast<size_t>(std::min(kWordBytes, size_bytes - i * kWordBytes)));
    lanes[i % kDigestLanes] += word * kDigestFactors.words[i];
  }
  uint64_t digest = 0;
  for (int l = 0; l < kDigestLanes; ++l) digest += uint64_t{lanes[l]} * kDigestFactors.lanes[l];
  return digest;
}

void block_digests(uint64_t* digests, const void* data, int64_t block_bytes, int64_t size_bytes) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (int64_t done = 0; done < size_bytes; done += block_bytes)
    *digests++ = block_digest(bytes + done, std::min(block_bytes, size_bytes - done));
}

}  // namespace

const HostLoops& plain_loops() {
  static constexpr HostLoops kLoops{copy,
                                    fill,
                                    scale,
                                    add,
                                    axpy,
                                    cast,
                                    split,
                                    merge,
                                    sum_tree,
                                    block_squares,
                                    BlockNormLoops<cast>::largest,
                                    BlockNormLoops<cast>::fixed_squares,
                                    find_nonfinite,
                                    block_digests};
  return kLoops;
}

TreeSources tree_sources(const TreeSum& sum) { return {sum.bases.data(), static_cast<int64_t>(sum.bases.size())}; }

uint64_t fill_pattern(DType dtype, float value) {
  const auto repeat16 = [](uint16_t bits) { return bits * 0x0001000100010001u; };
  switch (dtype) {
    case DType::kFloat64: {
      const double wide = value;
      uint64_t bits;
      std::memcpy(&bits, &wide, sizeof bits);
      return bits;
    }
    case DType::kFloat32: return float_bits(value) * 0x0000000100000001u;
    case DType::kBFloat16: return repeat16(float_to_bf16(value));
    case DType::kFloat16: return repeat16(float_to_fp16(value));
    case DType::kInt16: return repeat16(static_cast<uint16_t>(to_integer<int16_t>(value)));
    case DType::kUInt8: return to_integer<uint8_t>(value) * 0x0101010101010101u;
  }
  return 0;
}

}  // namespace aliquot
