#pragma once
// Distributes work to the threads of a rank. The number of threads does not change results.

#include <cstdint>

#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Calls body(part) once for each part in [0, pool.thread_count()), in parallel unless the pool is busy.
template <typename Body>
void for_parts(ThreadPool& pool, Body&& body) {
  const int64_t part_count = pool.thread_count();
  // The pool runs a loop of few elements on one thread. To use all threads, each part counts as this many elements.
  constexpr int64_t kElementsPerPart = 65536;
  pool.for_ranges(part_count * kElementsPerPart, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = 0; part < part_count; ++part) {
      const int64_t first = part * kElementsPerPart;
      if (begin <= first && first < end) body(part);
    }
  });
}

/// Calls body(task, part) once for each task in [0, count). Tasks of one part run one after the other, so each part may
/// have its own scratch memory. The result of a task must not depend on its part.
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
