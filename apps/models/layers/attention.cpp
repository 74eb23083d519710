#include "apps/models/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "apps/models/layers/attention_heads.h"
#include "apps/models/layers/work_time.h"
#include "kernels/gemm/product.h"
#include "kernels/system/parallel.h"

namespace aliquot {
namespace {

// The query heads of one sequence that share a key and value head, with the offsets of their elements.
struct Group {
  int64_t sequence, first_head, kv_head;  // sequence: index in the batch

  int64_t queries(const AttentionShape& s, int64_t head) const {
    return sequence * s.sequence * s.stride() + head * s.head_width;
  }
  int64_t keys(const AttentionShape& s) const { return queries(s, s.heads + kv_head); }
  int64_t values(const AttentionShape& s) const { return keys(s) + s.kv_width(); }
  int64_t output(const AttentionShape& s, int64_t head) const {
    return sequence * s.sequence * s.width() + head * s.head_width;
  }
  int64_t log_sums(const AttentionShape& s, int64_t head) const { return (sequence * s.heads + head) * s.sequence; }
};

int64_t group_heads(const AttentionShape& s) { return s.heads / s.kv_heads; }

Group group_of(const AttentionShape& s, int64_t task) {
  const int64_t kv_head = task % s.kv_heads;
  return {task / s.kv_heads, kv_head * group_heads(s), kv_head};
}

float score_scale(const AttentionShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_width)); }

ScoreStrip strip_at(const AttentionShape& s, float* scores, int64_t first_query) {
  const int64_t rows = std::min(kAttentionQueries, s.sequence - first_query), first_key = s.first_key(first_query);
  // The columns are the keys from the first one of the strip's first query to the position of its last query. In each
  // row, the softmax zeroes the keys to which the row's query does not attend.
  return {.scores = scores,
          .stride = strip_keys(s),
          .rows = rows,
          .keys = first_query + rows - first_key,
          .first_query = first_query,
          .first_key = first_key,
          .window = s.window};
}

// scores = queries x keys^T / sqrt(head_width). `queries` begins with the strip's first query.
void compute_scores(const AttentionShape& s, const HeadRows& queries, const HeadRows& keys, const ScoreStrip& strip) {
  multiply_on_calling_thread({.a = {queries.data, queries.stride},
                              .b = {keys.row(strip.first_key), keys.stride, true},
                              .to = strip.scores,
                              .to_stride = strip.stride,
                              .rows = strip.rows,
                              .columns = strip.keys,
                              .depth = s.head_width,
                              .factor = score_scale(s)});
}

struct ForwardHead {
  HeadRows queries, keys, values;
  Values to;  // the head's columns of the output
  float* log_sums;
  int64_t first_query;  // the position of the first row of `queries`
};

void forward_strip(const AttentionShape& s, const ForwardHead& head, const ScoreStrip& strip, float* scratch) {
  const int64_t row_of_queries = strip.first_query - head.first_query;
  compute_scores(s, {head.queries.row(row_of_queries), head.queries.stride}, head.keys, strip);
  row_loops().softmax(strip, head.log_sums + row_of_queries);
  const bool in_place = head.to.type == DType::kFloat32;
  const Values to = head.to.from(row_of_queries * s.width());
  multiply_on_calling_thread({.a = {strip.scores, strip.stride},
                              .b = {head.values.row(strip.first_key), head.values.stride},
                              .to = in_place ? to.fp32() : scratch,
                              .to_stride = in_place ? s.width() : s.head_width,
                              .rows = strip.rows,
                              .columns = s.head_width,
                              .depth = strip.keys});
  for (int64_t row = 0; !in_place && row < strip.rows; ++row) {
    row_loops().convert(to.from(row * s.width()), scratch + row * s.head_width, s.head_width);
  }
}

struct KeysAndValues {
  HeadRows keys, values;
};
KeysAndValues keys_and_values(const AttentionForward& a, const Group& group, const AttentionScratch& scratch) {
  const AttentionShape& s = a.shape;
  if (a.cached.rows.data == nullptr)
    return {readable(s, a.qkv.from(group.keys(s)), scratch.keys),
            readable(s, a.qkv.from(group.values(s)), scratch.values)};
  const ConstValues keys = a.cached.rows.from(group.kv_head * s.head_width);
  const int64_t stride = 2 * s.kv_width();
  return {readable(a.shape_of_keys(), keys, scratch.keys, stride),
          readable(a.shape_of_keys(), keys.from(s.kv_width()), scratch.values, stride)};
}

void forward_group(const AttentionForward& a, const Group& group, const AttentionScratch& scratch) {
  const AttentionShape &s = a.shape, of_keys = a.shape_of_keys();
  const auto [keys, values] = keys_and_values(a, group, scratch);
  for (int64_t head = group.first_head; head < group.first_head + group_heads(s); ++head) {
    const HeadRows queries = readable(s, a.qkv.from(group.queries(s, head)), scratch.queries);
    const int64_t first = a.cached.first_query;
    const ForwardHead one{queries, keys, values, a.to.from(group.output(s, head)), a.log_sums + group.log_sums(s, head),
                          first};
    for (int64_t query = first; query < of_keys.sequence; query += kAttentionQueries) {
      forward_strip(s, one, strip_at(of_keys, scratch.scores, query), scratch.output);
    }
  }
}

struct BackwardHead {
  HeadRows queries, keys, values, d_queries, d_keys, d_values;
  const float* from;   // the head's columns of the output's gradient
  ConstValues output;  // the head's columns of the output
  const float* log_sums;
  bool is_first;  // whether this is the first head of its group
};

// Assigns or adds the contribution of one strip to the gradients of the keys [begin, end) and of their values.
struct KeyRange {
  int64_t begin, end;
  bool add;
};
void backward_key_range(const AttentionShape& s, const BackwardHead& head, const ScoreStrip& strip,
                        const float* d_scores, const KeyRange& keys) {
  if (keys.begin == keys.end) return;
  const int64_t column = keys.begin - strip.first_key;
  multiply_on_calling_thread({.a = {d_scores + column, strip.stride, true},
                              .b = {head.queries.row(strip.first_query), head.queries.stride},
                              .to = head.d_keys.row(keys.begin),
                              .to_stride = head.d_keys.stride,
                              .rows = keys.end - keys.begin,
                              .columns = s.head_width,
                              .depth = strip.rows,
                              .factor = score_scale(s),
                              .add = keys.add});
  multiply_on_calling_thread({.a = {strip.scores + column, strip.stride, true},
                              .b = {head.from + strip.first_query * s.width(), s.width()},
                              .to = head.d_values.row(keys.begin),
                              .to_stride = head.d_values.stride,
                              .rows = keys.end - keys.begin,
                              .columns = s.head_width,
                              .depth = strip.rows,
                              .add = keys.add});
}

// Strips run from last to first. In a group's first head, a strip assigns the gradients of the keys before those of the
// later strips, and adds to the others. In the group's other heads, all strips add.
void backward_keys_and_values(const AttentionShape& s, const BackwardHead& head, const ScoreStrip& strip,
                              const float* d_scores) {
  const int64_t end = strip.first_key + strip.keys, later = end < s.sequence ? s.first_key(end) : end;
  const int64_t assigned = head.is_first ? later : strip.first_key;
  backward_key_range(s, head, strip, d_scores, {strip.first_key, assigned, false});
  backward_key_range(s, head, strip, d_scores, {assigned, end, true});
}

// Computes the probabilities in strip.scores and the gradients of the scores in d_scores.
void backward_scores(const AttentionShape& s, const BackwardHead& head, const ScoreStrip& strip, float* d_scores) {
  const float* from = head.from + strip.first_query * s.width();
  compute_scores(s, {head.queries.row(strip.first_query), head.queries.stride}, head.keys, strip);
  row_loops().recompute_softmax(strip, head.log_sums + strip.first_query);
  multiply_on_calling_thread({.a = {from, s.width()},
                              .b = {head.values.row(strip.first_key), head.values.stride, true},
                              .to = d_scores,
                              .to_stride = strip.stride,
                              .rows = strip.rows,
                              .columns = strip.keys,
                              .depth = s.head_width});
  // The sum over keys of probability x gradient for each row. It equals dot(output, gradient of the output).
  float deltas[kAttentionQueries];
  for (int64_t row = 0; row < strip.rows; ++row) {
    const ConstValues output = head.output.from((strip.first_query + row) * s.width());
    deltas[row] = row_loops().dot(from + row * s.width(), output, s.head_width);
  }
  row_loops().softmax_backward(strip, d_scores, deltas);
}

void backward_strip(const AttentionShape& s, const BackwardHead& head, const ScoreStrip& strip, float* d_scores) {
  backward_scores(s, head, strip, d_scores);
  multiply_on_calling_thread({.a = {d_scores, strip.stride},
                              .b = {head.keys.row(strip.first_key), head.keys.stride},
                              .to = head.d_queries.row(strip.first_query),
                              .to_stride = head.d_queries.stride,
                              .rows = strip.rows,
                              .columns = s.head_width,
                              .depth = strip.keys,
                              .factor = score_scale(s)});
  backward_keys_and_values(s, head, strip, d_scores);
}

void backward_group(const AttentionBackward& a, const Group& group, const AttentionScratch& scratch) {
  const AttentionShape& s = a.shape;
  const Values to_keys = a.to.from(group.keys(s)), to_values = a.to.from(group.values(s));
  BackwardHead one{};
  one.keys = readable(s, a.qkv.from(group.keys(s)), scratch.keys);
  one.values = readable(s, a.qkv.from(group.values(s)), scratch.values);
  one.d_keys = writable(s, to_keys, scratch.d_keys);
  one.d_values = writable(s, to_values, scratch.d_values);
  for (int64_t head = group.first_head; head < group.first_head + group_heads(s); ++head) {
    const Values to = a.to.from(group.queries(s, head));
    one.queries = readable(s, a.qkv.from(group.queries(s, head)), scratch.queries);
    one.d_queries = writable(s, to, scratch.d_queries);
    one.from = a.from + group.output(s, head);
    one.output = a.output.from(group.output(s, head));
    one.log_sums = a.log_sums + group.log_sums(s, head);
    one.is_first = head == group.first_head;
    for (int64_t query = (s.sequence - 1) / kAttentionQueries * kAttentionQueries; query >= 0;
         query -= kAttentionQueries) {
      backward_strip(s, one, strip_at(s, scratch.scores, query), scratch.d_scores);
    }
    write_back(s, to, one.d_queries);
  }
  write_back(s, to_keys, one.d_keys);
  write_back(s, to_values, one.d_values);
}

}  // namespace

int64_t attention_scratch_elements(const AttentionShape& shape, DType type) {
  return AttentionScratch::elements(shape, type);
}

void attention_forward(ThreadPool& pool, const AttentionForward& a) {
  const ScopedWorkTimer timed(WorkKind::kAttention);
  const AttentionShape of_keys = a.shape_of_keys();
  const int64_t elements = attention_scratch_elements(of_keys, a.qkv.type);
  for_tasks(pool, a.shape.batch * a.shape.kv_heads, [&](int64_t task, int64_t part) {
    forward_group(a, group_of(a.shape, task), AttentionScratch(of_keys, a.scratch + part * elements));
  });
}

void attention_backward(ThreadPool& pool, const AttentionBackward& a) {
  const ScopedWorkTimer timed(WorkKind::kAttention);
  const int64_t elements = attention_scratch_elements(a.shape, a.qkv.type);
  for_tasks(pool, a.shape.batch * a.shape.kv_heads, [&](int64_t task, int64_t part) {
    backward_group(a, group_of(a.shape, task), AttentionScratch(a.shape, a.scratch + part * elements));
  });
}

}  // namespace aliquot
