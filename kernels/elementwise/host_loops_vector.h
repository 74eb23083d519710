#pragma once
// The vector loops, written once over a vector type V. Inside the room: only the files that are compiled with AVX flags
// include this, each after it defined its own V.
//
// Everything here is a template over V, which lives in an unnamed namespace there, or in one itself. So nothing has
// external linkage, and no code with AVX in it can replace somebody else's at link time; for the same reason no
// function of the standard library is called. Beginnings and ends that do not fill a vector go to the plain loops.
//
// V: kLanes floats. F: that register. load(p), store(p, F), stream(p, F) for float, Bf16 and Fp16 elements (stream goes
// past the caches and wants p aligned to the register's bytes of that type); add, mul, broadcast; sum_lanes(F) halving;
// high, low, store_bits<past caches>, merge for the split master; any_nonfinite(p), any_exponent16(p, exponent); prefetch(p).

#include <cstdint>

#include "kernels/elementwise/host_loops_tables.h"

namespace aliquot {
namespace {

// The 16-bit types as types, so that overloads choose the conversion.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// Outputs of a call from this size on go past the caches: the next reader would not find them there anyway, and the
// line need not be read before it is overwritten.
constexpr int64_t kNonTemporalThresholdBytes = int64_t{4} << 20;

constexpr int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : dtype == DType::kUInt8 ? 1 : 2;
}

// The processor's own prefetcher stops at every page; asking early was worth 10 to 30 % of a loop's time.
template <class V>
void prefetch_ahead(const void* at) {
  V::prefetch(static_cast<const char*>(at) + 2048);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Elements of T before the next cache line.
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

  // The caller fences.
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

  // The C library's: a loop of streaming stores was measured no faster.
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
