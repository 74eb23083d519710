#include "apps/models/attention.h"

#include <algorithm>
#include <cmath>

#include "apps/models/parallel.h"
#include "apps/models/product.h"
#include "apps/models/row_loops.h"

namespace aliquot {
namespace {

// One head of one sequence: where its first query, key, value and output element lie.
struct Head {
  int64_t qkv, output, log_sums;
};

Head head_of(const AttentionShape& s, int64_t task) {
  const int64_t batch = task / s.heads, head = task % s.heads;
  return {batch * s.sequence * s.stride() + head * s.head_width, batch * s.sequence * s.width() + head * s.head_width,
          (batch * s.heads + head) * s.sequence};
}

float score_scale(const AttentionShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_width)); }

ScoreStrip strip_at(const AttentionShape& s, float* scores, int64_t first_query) {
  const int64_t rows = std::min(kAttentionQueries, s.sequence - first_query);
  // Keys beyond the last query of the strip are not computed at all; within it the softmax zeroes them.
  return {scores, s.sequence, rows, first_query + rows, first_query};
}

// scores = queries x keys^T / sqrt(head_width).
void compute_scores(const AttentionShape& s, const float* qkv, const ScoreStrip& strip) {
  const float* queries = qkv + strip.first_query * s.stride();
  const float* keys = qkv + s.width();
  multiply_here({.a = {queries, s.stride()},
                 .b = {keys, s.stride(), true},
                 .to = strip.scores,
                 .to_stride = strip.stride,
                 .rows = strip.rows,
                 .columns = strip.keys,
                 .depth = s.head_width,
                 .factor = score_scale(s)});
}

void forward_head(const AttentionForward& a, const Head& head, float* scratch) {
  const AttentionShape& s = a.shape;
  const float* qkv = a.qkv + head.qkv;
  const float* values = qkv + 2 * s.width();
  for (int64_t query = 0; query < s.sequence; query += kAttentionQueries) {
    const ScoreStrip strip = strip_at(s, scratch, query);
    compute_scores(s, qkv, strip);
    row_loops().softmax(strip, a.log_sums + head.log_sums + query);
    multiply_here({.a = {strip.scores, strip.stride},
                   .b = {values, s.stride()},
                   .to = a.to + head.output + query * s.width(),
                   .to_stride = s.width(),
                   .rows = strip.rows,
                   .columns = s.head_width,
                   .depth = strip.keys});
  }
}

// The gradients of keys and values get their share of one strip. The last strip sees every key and comes first, so it
// assigns and the others add.
void backward_keys_and_values(const AttentionBackward& a, const Head& head, const ScoreStrip& strip,
                              const float* d_scores) {
  const AttentionShape& s = a.shape;
  const bool add = strip.keys < s.sequence;
  const float* queries = a.qkv + head.qkv + strip.first_query * s.stride();
  const float* from = a.from + head.output + strip.first_query * s.width();
  float* d_keys = a.to + head.qkv + s.width();
  multiply_here({.a = {d_scores, strip.stride, true},
                 .b = {queries, s.stride()},
                 .to = d_keys,
                 .to_stride = s.stride(),
                 .rows = strip.keys,
                 .columns = s.head_width,
                 .depth = strip.rows,
                 .factor = score_scale(s),
                 .add = add});
  multiply_here({.a = {strip.scores, strip.stride, true},
                 .b = {from, s.width()},
                 .to = d_keys + s.width(),
                 .to_stride = s.stride(),
                 .rows = strip.keys,
                 .columns = s.head_width,
                 .depth = strip.rows,
                 .add = add});
}

void backward_strip(const AttentionBackward& a, const Head& head, const ScoreStrip& strip, float* d_scores) {
  const AttentionShape& s = a.shape;
  const float* qkv = a.qkv + head.qkv;
  const float* from = a.from + head.output + strip.first_query * s.width();
  const float* output = a.output + head.output + strip.first_query * s.width();
  compute_scores(s, qkv, strip);
  row_loops().softmax_again(strip, a.log_sums + head.log_sums + strip.first_query);
  multiply_here({.a = {from, s.width()},
                 .b = {qkv + 2 * s.width(), s.stride(), true},
                 .to = d_scores,
                 .to_stride = strip.stride,
                 .rows = strip.rows,
                 .columns = strip.keys,
                 .depth = s.head_width});
  float deltas[kAttentionQueries];  // sum of probability x gradient, which is output x its gradient
  for (int64_t row = 0; row < strip.rows; ++row) {
    deltas[row] = row_loops().dot(from + row * s.width(), output + row * s.width(), s.head_width);
  }
  row_loops().softmax_backward(strip, d_scores, deltas);
  multiply_here({.a = {d_scores, strip.stride},
                 .b = {qkv + s.width(), s.stride()},
                 .to = a.to + head.qkv + strip.first_query * s.stride(),
                 .to_stride = s.stride(),
                 .rows = strip.rows,
                 .columns = s.head_width,
                 .depth = strip.keys,
                 .factor = score_scale(s)});
  backward_keys_and_values(a, head, strip, d_scores);
}

}  // namespace

int64_t attention_scratch_elements(const AttentionShape& s) {
  return 2 * std::min(kAttentionQueries, s.sequence) * s.sequence;  // scores and their gradients
}

void attention_forward(ThreadPool& pool, const AttentionForward& a) {
  for_tasks(pool, a.shape.batch * a.shape.heads, [&](int64_t task, int64_t part) {
    forward_head(a, head_of(a.shape, task), a.scratch + part * attention_scratch_elements(a.shape));
  });
}

void attention_backward(ThreadPool& pool, const AttentionBackward& a) {
  const int64_t strip_count = (a.shape.sequence + kAttentionQueries - 1) / kAttentionQueries;
  for_tasks(pool, a.shape.batch * a.shape.heads, [&](int64_t task, int64_t part) {
    float* scores = a.scratch + part * attention_scratch_elements(a.shape);
    float* d_scores = scores + attention_scratch_elements(a.shape) / 2;
    for (int64_t strip = strip_count - 1; strip >= 0; --strip) {
      backward_strip(a, head_of(a.shape, task), strip_at(a.shape, scores, strip * kAttentionQueries), d_scores);
    }
  });
}

}  // namespace aliquot
