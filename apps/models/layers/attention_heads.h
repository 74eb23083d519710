#pragma once
// Rows of one attention head in fp32: in place if the array is fp32, else converted in scratch.

#include <cstdint>

#include "apps/models/layers/attention.h"
#include "kernels/layers/row_loops.h"

namespace aliquot {

/// Rows of head_width elements, `stride` apart.
struct HeadRows {
  float* data = nullptr;
  int64_t stride = 0;

  float* row(int64_t index) const { return data + index * stride; }
};

/// The largest number of keys to which the queries of a strip attend together. Rows of a strip are this many
/// elements apart.
inline int64_t strip_keys(const AttentionShape& s) {
  const int64_t reach = kAttentionQueries + s.window - 1;
  return s.window == 0 || reach > s.sequence ? s.sequence : reach;
}

/// The scratch of one thread. Only 16-bit arrays use the members after d_scores.
struct AttentionScratch {
  float *scores, *d_scores;              // one strip each
  float *queries, *keys, *values;        // all rows of one head each
  float *d_queries, *d_keys, *d_values;  // all rows of one head each
  float* output;                         // the rows of one strip

  static int64_t elements(const AttentionShape& s, DType type) {
    const int64_t strip_rows = s.sequence < kAttentionQueries ? s.sequence : kAttentionQueries;
    const int64_t scores = 2 * strip_rows * strip_keys(s);
    return type == DType::kFloat32 ? scores : scores + 6 * s.sequence * s.head_width + strip_rows * s.head_width;
  }

  AttentionScratch(const AttentionShape& s, float* at) {
    const int64_t strip_rows = s.sequence < kAttentionQueries ? s.sequence : kAttentionQueries;
    const int64_t strip = strip_rows * strip_keys(s), head = s.sequence * s.head_width;
    scores = at;
    d_scores = at + strip;
    queries = at + 2 * strip;
    keys = queries + head;
    values = keys + head;
    d_queries = values + head;
    d_keys = d_queries + head;
    d_values = d_keys + head;
    output = d_values + head;
  }
};

/// Returns s.sequence rows of a head, which are `stride` elements apart in `from`, in fp32. If `from` has 16 bits,
/// converts them into `scratch`.
inline HeadRows readable(const AttentionShape& s, ConstValues from, float* scratch, int64_t stride) {
  if (from.type == DType::kFloat32) return {const_cast<float*>(from.fp32()), stride};
  for (int64_t row = 0; row < s.sequence; ++row) {
    row_loops().convert(scratch + row * s.head_width, from.from(row * stride), s.head_width);
  }
  return {scratch, s.head_width};
}
inline HeadRows readable(const AttentionShape& s, ConstValues from, float* scratch) {
  return readable(s, from, scratch, s.stride());
}

/// The fp32 rows to which the caller writes. These are the rows of `to`, or `scratch` if `to` has 16 bits. write_back()
/// then converts `scratch` into `to`.
inline HeadRows writable(const AttentionShape& s, Values to, float* scratch) {
  if (to.type == DType::kFloat32) return {to.fp32(), s.stride()};
  return {scratch, s.head_width};
}

inline void write_back(const AttentionShape& s, Values to, const HeadRows& rows) {
  if (to.type == DType::kFloat32) return;
  for (int64_t row = 0; row < s.sequence; ++row) {
    row_loops().convert(to.from(row * s.stride()), rows.row(row), s.head_width);
  }
}

}  // namespace aliquot
