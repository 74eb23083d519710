#pragma once
// The vector sums as templates over a vector type V, and the complete table of loops. Only the files that are compiled
// with AVX flags include this. The rules in host_loops_vector.h apply here too.

#include <cstdint>

#include "kernels/elementwise/block_norm_loops.h"
#include "kernels/elementwise/host_loops_tables.h"
#include "kernels/elementwise/host_loops_vector.h"

namespace aliquot {
namespace {

// Sums are computed in chunks of this length. All partial sums of a chunk fit in the second-level cache.
constexpr int64_t kChunkElements = 4 * kBlockElements;
// 4096 sources are 512 groups of 8. A binary counter up to 512 has 10 levels; one more holds the current group.
constexpr int kMaxStackDepth = 11;
static_assert((int64_t{8} << (kMaxStackDepth - 2)) >= kMaxTreeSources);

constexpr int64_t min_int64(int64_t a, int64_t b) { return a < b ? a : b; }

template <class V>
struct SumLoops {
  using F = typename V::F;
  static constexpr int64_t kLanes = V::kLanes;

  // Computes the halving tree recursively from its root. A level of the tree has kWidth vectors, and the next level has
  // twice as many. Vector kPosition of a level is the sum of vectors kPosition and kPosition + kWidth of the next
  // level. The last level consists of the 256 squares.
  template <int kPosition, int kWidth>
  static F halving_sum(const float* x) {
    if constexpr (kWidth * kLanes == kBlockElements) {
      prefetch_ahead<V>(x + kPosition * kLanes);
      const F v = V::load(x + kPosition * kLanes);
      return V::mul(v, v);
    } else {
      return V::add(halving_sum<kPosition, 2 * kWidth>(x), halving_sum<kPosition + kWidth, 2 * kWidth>(x));
    }
  }

  static void block_squares(double* sums, const float* x, int64_t count) {
    int64_t i = 0;
    for (; i + kBlockElements <= count; i += kBlockElements) *sums++ = V::sum_lanes(halving_sum<0, 1>(x + i));
    plain_loops().block_squares(sums, x + i, count - i);
  }

  // Adds kCount adjacent sources in registers, in the order of the aligned binary tree. The number of sources in the
  // left subtree is the largest power of two below kCount.
  template <int kFirst, int kCount, class From>
  static F tree(const From* const* sources, int64_t i) {
    if constexpr (kCount == 1) {
      prefetch_ahead<V>(sources[kFirst] + i);
      return V::load(sources[kFirst] + i);
    } else {
      constexpr int kLeft = kCount > 4 ? 4 : kCount > 2 ? 2 : 1;
      return V::add(tree<kFirst, kLeft>(sources, i), tree<kFirst + kLeft, kCount - kLeft>(sources, i));
    }
  }

  template <int kCount, class From>
  static void sum_group(float* out, const std::byte* const* bases, int64_t offset_bytes, int64_t count) {
    const From* sources[kCount];
    for (int r = 0; r < kCount; ++r) sources[r] = reinterpret_cast<const From*>(bases[r] + offset_bytes);
    for (int64_t i = 0; i < count; i += kLanes) V::store(out + i, tree<0, kCount>(sources, i));
  }

  // Sets `out` to the sum of 1 to 8 sources, in tree order. `count` must be a multiple of kLanes.
  template <class From>
  static void sum_up_to_8(float* out, const std::byte* const* bases, int64_t base_count, int64_t offset_bytes,
                          int64_t count) {
    switch (base_count) {
      case 1: return sum_group<1, From>(out, bases, offset_bytes, count);
      case 2: return sum_group<2, From>(out, bases, offset_bytes, count);
      case 3: return sum_group<3, From>(out, bases, offset_bytes, count);
      case 4: return sum_group<4, From>(out, bases, offset_bytes, count);
      case 5: return sum_group<5, From>(out, bases, offset_bytes, count);
      case 6: return sum_group<6, From>(out, bases, offset_bytes, count);
      case 7: return sum_group<7, From>(out, bases, offset_bytes, count);
      default: return sum_group<8, From>(out, bases, offset_bytes, count);
    }
  }

  // Adds any number of sources in tree order. Each group of eight is an aligned subtree. A binary counter combines the
  // groups.
  template <class From>
  static void sum_many(float* out, const TreeSources& sources, int64_t offset_bytes, int64_t count) {
    if (sources.count <= 8) return sum_up_to_8<From>(out, sources.bases, sources.count, offset_bytes, count);
    alignas(64) float stack[kMaxStackDepth][kChunkElements];
    int depth = 0;
    for (int64_t group = 0; group * 8 < sources.count; ++group) {
      const int64_t group_count = min_int64(8, sources.count - group * 8);
      sum_up_to_8<From>(stack[depth++], sources.bases + group * 8, group_count, offset_bytes, count);
      for (int64_t carry = group + 1; carry % 2 == 0; carry /= 2, --depth)
        join(stack[depth - 2], stack[depth - 1], count);
    }
    for (; depth > 1; --depth) join(stack[depth - 2], stack[depth - 1], count);
    store_row(out, stack[0], count, false);
  }

  static void join(float* left, const float* right, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) V::store(left + i, V::add(V::load(left + i), V::load(right + i)));
  }

  // Returns whether the output is large and overlaps no source. If the output overlaps a source, reading this source
  // has already brought the cache lines of the output into the cache.
  template <class To, class From>
  static bool should_store_non_temporal(const TreeSum& sum, const TreeSources& sources, const To* to) {
    const auto begin = reinterpret_cast<uintptr_t>(to);
    const auto end = reinterpret_cast<uintptr_t>(to + sum.count);
    if (end - begin < static_cast<uintptr_t>(kNonTemporalThresholdBytes)) return false;
    for (int64_t r = 0; r < sources.count; ++r) {
      const auto source = reinterpret_cast<uintptr_t>(sources.bases[r] + sum.offset_bytes);
      if (source < end && begin < source + static_cast<uintptr_t>(sum.count) * sizeof(From)) return false;
    }
    return true;
  }

  // Sums chunk by chunk. Scaling and block_squares work on the fp32 sums of a chunk. These sums are in `to` if it is
  // fp32 and written with normal stores, and otherwise on the stack.
  template <class To, class From>
  static void sum_chunks(const TreeSum& sum, To* to, int64_t begin, int64_t end) {
    alignas(64) float staged[kChunkElements];
    const TreeSources sources = tree_sources(sum);
    const bool non_temporal = should_store_non_temporal<To, From>(sum, sources, to);
    for (int64_t first = begin; first < end; first += kChunkElements) {
      const int64_t count = min_int64(kChunkElements, end - first);
      float* out = staged;
      if constexpr (sizeof(To) == sizeof(float)) out = non_temporal ? staged : to + first;
      sum_many<From>(out, sources, sum.offset_bytes + first * static_cast<int64_t>(sizeof(From)), count);
      if (sum.factor != 1.0f) Loops<V>::scale(out, sum.factor, count);
      if (sum.block_squares != nullptr) block_squares(sum.block_squares + first / kBlockElements, out, count);
      if (out == staged) store_row(to + first, staged, count, non_temporal);
    }
    if (non_temporal) V::fence();
  }

  // Non-temporal stores must be aligned. Normal stores write the unaligned ends of the row, and overlap the first and
  // the last aligned vector. Elements written twice get the same value, because `from` does not overlap `to`.
  template <class To>
  static void store_row(To* to, const float* from, int64_t count, bool non_temporal) {
    if (non_temporal) {
      const int64_t head = elements_before_aligned(to);
      for (int64_t i = 0; i < head; i += kLanes) V::store(to + i, V::load(from + i));
      int64_t i = head;
      for (; i + kLanes <= count; i += kLanes) V::stream(to + i, V::load(from + i));
      if (i < count) V::store(to + count - kLanes, V::load(from + count - kLanes));
    } else {
      for (int64_t i = 0; i < count; i += kLanes) V::store(to + i, V::load(from + i));
    }
  }

  template <class From>
  static void sum_from(const TreeSum& sum, int64_t begin, int64_t end) {
    switch (sum.to_dtype) {
      case DType::kFloat32: return sum_chunks<float, From>(sum, static_cast<float*>(sum.to), begin, end);
      case DType::kBFloat16: return sum_chunks<Bf16, From>(sum, static_cast<Bf16*>(sum.to), begin, end);
      default: return sum_chunks<Fp16, From>(sum, static_cast<Fp16*>(sum.to), begin, end);
    }
  }

  static void sum_tree(const TreeSum& sum, int64_t begin, int64_t end) {
    const int64_t source_count = tree_sources(sum).count;
    const bool known = is_float(sum.to_dtype) && is_float(sum.from_dtype);
    const int64_t whole = begin + (end - begin) / kBlockElements * kBlockElements;
    if (!known || source_count < 1 || source_count > kMaxTreeSources) return plain_loops().sum_tree(sum, begin, end);
    switch (sum.from_dtype) {
      case DType::kFloat32: sum_from<float>(sum, begin, whole); break;
      case DType::kBFloat16: sum_from<Bf16>(sum, begin, whole); break;
      default: sum_from<Fp16>(sum, begin, whole); break;
    }
    plain_loops().sum_tree(sum, whole, end);
  }

  static bool is_float(DType dtype) {
    return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  }
};

template <class V>
constexpr HostLoops kVectorLoops{Loops<V>::copy,
                                 Loops<V>::fill,
                                 Loops<V>::scale,
                                 Loops<V>::add,
                                 Loops<V>::axpy,
                                 Loops<V>::cast,
                                 Loops<V>::split,
                                 Loops<V>::merge,
                                 SumLoops<V>::sum_tree,
                                 SumLoops<V>::block_squares,
                                 BlockNormLoops<Loops<V>::cast>::largest,
                                 BlockNormLoops<Loops<V>::cast>::fixed_squares,
                                 Loops<V>::find_nonfinite,
                                 Loops<V>::block_digests};

}  // namespace
}  // namespace aliquot
