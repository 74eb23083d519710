#pragma once
// Splits the rows or columns of a layer into ranges that the threads of a pool compute.

#include <algorithm>
#include <cstdint>

#include "kernels/system/parallel.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// The number of elements in one SIMD vector: see lanes.h.
inline constexpr int64_t kColumnGrain = 16;

/// Calls body(begin, end) in parallel for ranges of rows. Rows are independent, so any partition gives the same bits.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, Body&& body) {
  if (pool.thread_count() == 1) return body(int64_t{0}, rows);
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) { body(rows * part / part_count, rows * (part + 1) / part_count); });
}

/// Calls body(begin, end) in parallel for ranges of columns. Each range begins at a multiple of kColumnGrain.
template <typename Body>
void for_columns(ThreadPool& pool, int64_t width, Body&& body) {
  for_rows(pool, (width + kColumnGrain - 1) / kColumnGrain,
           [&](int64_t begin, int64_t end) { body(begin * kColumnGrain, std::min(end * kColumnGrain, width)); });
}

}  // namespace aliquot
