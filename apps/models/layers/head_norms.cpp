// Norms of attention heads, split over the threads of a rank.
#include "apps/models/layers/layers.h"
#include "apps/models/layers/ranges.h"
#include "apps/models/layers/work_time.h"

namespace aliquot {

void head_norms_forward(ThreadPool& pool, const HeadNorms& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    HeadNorms part = a;
    part.x = a.x.from(begin * a.stride);
    part.to = a.to.from(begin * a.stride);
    part.rstd += begin * a.heads;
    part.rows = end - begin;
    row_loops().head_norms(part);
  });
}

void head_norms_backward(ThreadPool& pool, const HeadNormsBackward& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    HeadNormsBackward part = a;
    part.x = a.x.from(begin * a.stride);
    part.gradient = a.gradient.from(begin * a.stride);
    part.rstd += begin * a.heads;
    part.rows = end - begin;
    row_loops().head_norms_backward(part);
  });
}

void head_norms_backward_weight(ThreadPool& pool, const HeadNormsWeight& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, a.head_width, [&](int64_t begin, int64_t end) {
    HeadNormsWeight part = a;
    part.begin = begin;
    part.end = end;
    row_loops().head_norms_weight(part);
  });
}

}  // namespace aliquot
