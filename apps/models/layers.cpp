#include "apps/models/layers.h"

#include <algorithm>
#include <cstring>

#include "apps/models/parallel.h"
#include "apps/models/product.h"

namespace aliquot {
namespace {

constexpr int64_t kColumnGrain = 16;  // one vector

// Calls body(begin, end) for ranges of rows. Rows stand alone, so any cut gives the same bits.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, Body&& body) {
  if (pool.thread_count() == 1) return body(int64_t{0}, rows);
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) { body(rows * part / part_count, rows * (part + 1) / part_count); });
}

// The same for columns: cuts lie between vectors.
template <typename Body>
void for_columns(ThreadPool& pool, int64_t width, Body&& body) {
  for_rows(pool, (width + kColumnGrain - 1) / kColumnGrain,
           [&](int64_t begin, int64_t end) { body(begin * kColumnGrain, std::min(end * kColumnGrain, width)); });
}

}  // namespace

void layer_norm_forward(ThreadPool& pool, const LayerNormRows& a) {
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    LayerNormRows part = a;
    part.x += begin * a.width;
    part.to += begin * a.width;
    part.mean += begin;
    part.rstd += begin;
    part.rows = end - begin;
    row_loops().layer_norm(part);
  });
}

void layer_norm_backward(ThreadPool& pool, const LayerNormBackwardRows& a) {
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    LayerNormBackwardRows part = a;
    part.x += begin * a.width;
    part.from += begin * a.width;
    part.to += begin * a.width;
    part.mean += begin;
    part.rstd += begin;
    part.rows = end - begin;
    row_loops().layer_norm_backward(part);
  });
}

void layer_norm_backward_weights(ThreadPool& pool, const LayerNormWeightColumns& a) {
  for_columns(pool, a.width, [&](int64_t begin, int64_t end) {
    LayerNormWeightColumns part = a;
    part.begin = begin;
    part.end = end;
    row_loops().layer_norm_weights(part);
  });
}

void linear_forward(ThreadPool& pool, const Linear& l, const float* x, const float* residual, float* to) {
  for_rows(pool, l.rows, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * l.outputs;
    row_loops().add_bias(to + first, residual == nullptr ? nullptr : residual + first, l.bias, end - begin, l.outputs);
  });
  multiply(pool, {.a = {x, l.inputs},
                  .b = {l.weight, l.outputs},
                  .to = to,
                  .to_stride = l.outputs,
                  .rows = l.rows,
                  .columns = l.outputs,
                  .depth = l.inputs,
                  .add = true});
}

void linear_gelu_forward(ThreadPool& pool, const Linear& l, const float* x, float* before, float* to) {
  multiply(pool, {.a = {x, l.inputs},
                  .b = {l.weight, l.outputs},
                  .to = before,
                  .to_stride = l.outputs,
                  .rows = l.rows,
                  .columns = l.outputs,
                  .depth = l.inputs});
  for_rows(pool, l.rows, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * l.outputs;
    row_loops().bias_gelu(to + first, before + first, l.bias, end - begin, l.outputs);
  });
}

void linear_backward_input(ThreadPool& pool, const Linear& l, const float* from, float* to) {
  multiply(pool, {.a = {from, l.outputs},
                  .b = {l.weight, l.outputs, true},
                  .to = to,
                  .to_stride = l.inputs,
                  .rows = l.rows,
                  .columns = l.inputs,
                  .depth = l.outputs});
}

void linear_backward_weights(ThreadPool& pool, const Linear& l, const float* x, const float* from,
                             const LinearGradients& to) {
  multiply(pool, {.a = {x, l.inputs, true},
                  .b = {from, l.outputs},
                  .to = to.weight,
                  .to_stride = l.outputs,
                  .rows = l.inputs,
                  .columns = l.outputs,
                  .depth = l.rows,
                  .add = to.add});
  for_columns(pool, l.outputs, [&](int64_t begin, int64_t end) {
    row_loops().sum_columns(to.bias, from, l.rows, l.outputs, begin, end, to.add);
  });
}

void gelu_forward(ThreadPool& pool, float* to, const float* x, int64_t count) {
  for_columns(pool, count, [&](int64_t begin, int64_t end) { row_loops().gelu(to + begin, x + begin, end - begin); });
}

void gelu_backward(ThreadPool& pool, float* gradient, const float* x, int64_t count) {
  for_columns(pool, count,
              [&](int64_t begin, int64_t end) { row_loops().gelu_backward(gradient + begin, x + begin, end - begin); });
}

void embedding_forward(ThreadPool& pool, const Embedding& e, const float* table, float* to) {
  for_rows(pool, e.rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * e.width, table + e.tokens[row] * e.width, static_cast<size_t>(e.width) * sizeof(float));
    }
  });
}

void embedding_backward(ThreadPool& pool, const Embedding& e, const float* from, float* table_gradient) {
  // By columns: one token may stand in many rows, and their order must not depend on the threads.
  for_columns(pool, e.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < e.rows; ++row) {
      row_loops().add(table_gradient + e.tokens[row] * e.width + begin, from + row * e.width + begin, end - begin);
    }
  });
}

void positions_forward(ThreadPool& pool, const Positions& p, const float* table, float* to) {
  for_rows(pool, p.batch * p.sequence, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_loops().add(to + row * p.width, table + row % p.sequence * p.width, p.width);
    }
  });
}

void positions_backward(ThreadPool& pool, const Positions& p, const float* from, float* table_gradient, bool add) {
  for_rows(pool, add ? p.sequence : p.context, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      float* to = table_gradient + position * p.width;
      if (!add) std::memset(to, 0, static_cast<size_t>(p.width) * sizeof(float));
      for (int64_t b = 0; b < p.batch && position < p.sequence; ++b) {
        row_loops().add(to, from + (b * p.sequence + position) * p.width, p.width);
      }
    }
  });
}

}  // namespace aliquot
