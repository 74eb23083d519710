#pragma once
// Sharing a model's work between the threads of a rank, in cuts that never change a result.

#include <cstdint>

#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Calls body(part) once for each of the pool's thread_count() parts, at the same time where the pool is free.
template <typename Body>
void for_parts(ThreadPool& pool, Body&& body) {
  const int64_t part_count = pool.thread_count();
  // Far more elements than the pool takes for a small loop, so that a few large tasks are shared out too.
  constexpr int64_t kElementsPerPart = 65536;
  pool.for_ranges(part_count * kElementsPerPart, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = 0; part < part_count; ++part) {
      const int64_t first = part * kElementsPerPart;
      if (begin <= first && first < end) body(part);
    }
  });
}

/// Calls body(task, part) once for each task of [0, count). Tasks of one part run one after the other, so a part may
/// own scratch memory. What a task computes must not depend on its part.
template <typename Body>
void for_tasks(ThreadPool& pool, int64_t count, Body&& body) {
  if (pool.thread_count() == 1) {
    for (int64_t task = 0; task < count; ++task) body(task, int64_t{0});
    return;
  }
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) {
    const int64_t end = count * (part + 1) / part_count;
    for (int64_t task = count * part / part_count; task < end; ++task) body(task, part);
  });
}

}  // namespace aliquot
