#pragma once
// The vector loops as templates over a vector type V. Only host_loops_avx2.cpp and host_loops_avx512.cpp include this.
// They are compiled with AVX flags, and define V before they use the templates.
//
// V and all code here are in unnamed namespaces, so nothing has external linkage. Otherwise the linker could use a copy
// with AVX instructions in files without AVX flags. For the same reason, the code calls no function of the standard
// library. The plain loops process elements that do not fill a vector.
//
// V::F is a register of V::kLanes floats. load(p), store(p, F) and stream(p, F) access float, Bf16 and Fp16 elements;
// stream() uses non-temporal stores and needs p aligned to the size of the stored vector. add(), mul() and broadcast()
// do arithmetic, and sum_lanes(F) adds the lanes in a halving tree. high(), low(), store_bits<non-temporal>() and
// merge() are for split masters. any_nonfinite(p) and any_exponent16(p, exponent) search; prefetch(p) prefetches.
// digest(p, bytes) returns the digest of a block whose size is a multiple of 64 bytes.

#include <cstdint>

#include "kernels/elementwise/block_digest.h"
#include "kernels/elementwise/host_loops_tables.h"

namespace aliquot {
namespace {

// Distinct types for bf16 and fp16, so that overload resolution selects the conversion.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// Outputs of at least this size are written with non-temporal stores. Such outputs would not stay in the caches.
// Non-temporal stores do not read a cache line before they overwrite it.
constexpr int64_t kNonTemporalThresholdBytes = int64_t{4} << 20;

constexpr int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : dtype == DType::kUInt8 ? 1 : 2;
}

// Prefetches data that a loop reads later, because the hardware prefetcher stops at page boundaries. This made loops 10
// to 30 % faster.
template <class V>
void prefetch_ahead(const void* at) {
  V::prefetch(static_cast<const char*>(at) + 2048);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Returns the number of elements before the first element that is aligned to a cache line.
template <class T>
int64_t elements_before_aligned(const T* to) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % 64 / sizeof(T));
}

template <class V>
struct Loops {
  using F = typename V::F;
  static constexpr int64_t kLanes = V::kLanes;

  static void scale(float* x, float factor, int64_t count) {
    const F f = V::broadcast(factor);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) V::store(x + i, V::mul(V::load(x + i), f));
    plain_loops().scale(x + i, factor, count - i);
  }

  static void add(float* to, const float* from, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) V::store(to + i, V::add(V::load(to + i), V::load(from + i)));
    plain_loops().add(to + i, from + i, count - i);
  }

  static void axpy(float* y, float a, const float* x, int64_t count) {
    const F f = V::broadcast(a);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) V::store(y + i, V::add(V::load(y + i), V::mul(f, V::load(x + i))));
    plain_loops().axpy(y + i, a, x + i, count - i);
  }

  template <class To, class From>
  static int64_t convert(To* to, const From* from, int64_t begin, int64_t count) {
    for (; begin + kLanes <= count; begin += kLanes) {
      prefetch_ahead<V>(from + begin);
      V::store(to + begin, V::load(from + begin));
    }
    return begin;
  }

  // Like convert(), but with non-temporal stores. The caller must call V::fence() afterwards.
  template <class To, class From>
  static int64_t convert_streaming(To* to, const From* from, int64_t begin, int64_t count) {
    for (; begin + kLanes <= count; begin += kLanes) {
      prefetch_ahead<V>(from + begin);
      V::stream(to + begin, V::load(from + begin));
    }
    return begin;
  }

  template <class To, class From>
  static void cast_range(To* to, DType to_dtype, const From* from, DType from_dtype, int64_t count) {
    int64_t i = 0;
    if (count * static_cast<int64_t>(sizeof(To)) >= kNonTemporalThresholdBytes) {
      i = elements_before_aligned(to);
      plain_loops().cast(to, to_dtype, from, from_dtype, i);
      i = convert_streaming(to, from, i, count);
      V::fence();
    } else {
      i = convert(to, from, i, count);
    }
    plain_loops().cast(to + i, to_dtype, from + i, from_dtype, count - i);
  }

  template <class From>
  static void cast_from(void* to, DType to_dtype, const From* from, DType from_dtype, int64_t count) {
    switch (to_dtype) {
      case DType::kFloat32: return cast_range(static_cast<float*>(to), to_dtype, from, from_dtype, count);
      case DType::kBFloat16: return cast_range(static_cast<Bf16*>(to), to_dtype, from, from_dtype, count);
      case DType::kFloat16: return cast_range(static_cast<Fp16*>(to), to_dtype, from, from_dtype, count);
      default: return plain_loops().cast(to, to_dtype, from, from_dtype, count);
    }
  }

  static void cast(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
    if (to_dtype == from_dtype) return plain_loops().cast(to, to_dtype, from, from_dtype, count);
    switch (from_dtype) {
      case DType::kFloat32: return cast_from(to, to_dtype, static_cast<const float*>(from), from_dtype, count);
      case DType::kBFloat16: return cast_from(to, to_dtype, static_cast<const Bf16*>(from), from_dtype, count);
      case DType::kFloat16: return cast_from(to, to_dtype, static_cast<const Fp16*>(from), from_dtype, count);
      default: return plain_loops().cast(to, to_dtype, from, from_dtype, count);
    }
  }

  template <bool kNonTemporal, bool kWithLow>
  static int64_t split_vectors(uint16_t* high, int16_t* low, const float* master, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      prefetch_ahead<V>(master + i);
      const F x = V::load(master + i);
      V::template store_bits<kNonTemporal>(high + i, V::high(x));
      if constexpr (kWithLow) V::template store_bits<kNonTemporal>(low + i, V::low(x));
    }
    if constexpr (kNonTemporal) V::fence();
    return i;
  }

  static void split(uint16_t* high, int16_t* low, const float* master, int64_t count) {
    const bool non_temporal = 2 * count >= kNonTemporalThresholdBytes && is_aligned(high) && is_aligned(low);
    if (low == nullptr) {
      const auto vectors = non_temporal ? split_vectors<true, false> : split_vectors<false, false>;
      const int64_t done = vectors(high, low, master, count);
      return plain_loops().split(high + done, nullptr, master + done, count - done);
    }
    const auto vectors = non_temporal ? split_vectors<true, true> : split_vectors<false, true>;
    const int64_t done = vectors(high, low, master, count);
    plain_loops().split(high + done, low + done, master + done, count - done);
  }

  static void merge(float* master, const uint16_t* high, const int16_t* low, int64_t count) {
    const bool non_temporal = 4 * count >= kNonTemporalThresholdBytes && is_aligned(master);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      prefetch_ahead<V>(high + i);
      prefetch_ahead<V>(low + i);
      const F x = V::merge(high + i, low + i);
      if (non_temporal) {
        V::stream(master + i, x);
      } else {
        V::store(master + i, x);
      }
    }
    if (non_temporal) V::fence();
    plain_loops().merge(master + i, high + i, low + i, count - i);
  }

  static int64_t find_nonfinite(const void* x, DType dtype, int64_t count) {
    int64_t i = 0;
    if (dtype == DType::kFloat32) {
      const auto* elements = static_cast<const float*>(x);
      for (; i + kLanes <= count && !V::any_nonfinite(elements + i); i += kLanes) prefetch_ahead<V>(elements + i);
    } else if (dtype == DType::kBFloat16 || dtype == DType::kFloat16) {
      const int exponent = dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00;
      const auto* elements = static_cast<const uint16_t*>(x);
      for (; i + 2 * kLanes <= count && !V::any_exponent16(elements + i, exponent); i += 2 * kLanes)
        prefetch_ahead<V>(elements + i);
    }
    const auto* rest = static_cast<const char*>(x) + i * bytes_of(dtype);
    return i + plain_loops().find_nonfinite(rest, dtype, count - i);
  }

  // The plain loop processes blocks that are not a multiple of 64 bytes.
  static void block_digests(uint64_t* digests, const void* data, int64_t block_bytes, int64_t size_bytes) {
    const auto* bytes = static_cast<const char*>(data);
    int64_t done = 0;
    for (; block_bytes % 64 == 0 && done + block_bytes <= size_bytes; done += block_bytes) {
      prefetch_ahead<V>(bytes + done);
      *digests++ = V::digest(bytes + done, block_bytes);
    }
    if (done < size_bytes) plain_loops().block_digests(digests, bytes + done, block_bytes, size_bytes - done);
  }

  // Uses memcpy: in measurements a loop of non-temporal stores was not faster.
  static void copy(void* to, const void* from, int64_t size_bytes) { plain_loops().copy(to, from, size_bytes); }

  static void fill(void* to, DType dtype, float value, int64_t count) {
    const int64_t size_bytes = count * bytes_of(dtype);
    if (size_bytes < 256) return plain_loops().fill(to, dtype, value, count);
    auto* out = static_cast<unsigned char*>(to);
    const int64_t head = elements_before_aligned(out);
    const uint64_t pattern = fill_pattern(dtype, value);
    plain_loops().fill(out, dtype, value, head / bytes_of(dtype));
    const int64_t done =
        head + V::fill_bytes(out + head, pattern, size_bytes - head, size_bytes >= kNonTemporalThresholdBytes);
    plain_loops().fill(out + done, dtype, value, (size_bytes - done) / bytes_of(dtype));
  }
};

}  // namespace
}  // namespace aliquot
