#include "apps/models/layers/layers.h"

#include <algorithm>
#include <cstring>

#include "apps/models/layers/linear_products.h"
#include "apps/models/layers/ranges.h"
#include "apps/models/layers/work_time.h"
#include "kernels/gemm/product.h"

namespace aliquot {
void layer_norm_forward(ThreadPool& pool, const LayerNormRows& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    LayerNormRows part = a;
    part.x += begin * a.width;
    part.to = a.to.from(begin * a.width);
    if (a.mean != nullptr) part.mean += begin;
    part.rstd += begin;
    part.rows = end - begin;
    row_loops().layer_norm(part);
  });
}

void layer_norm_backward(ThreadPool& pool, const LayerNormBackwardRows& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, a.rows, [&](int64_t begin, int64_t end) {
    LayerNormBackwardRows part = a;
    part.x += begin * a.width;
    part.from += begin * a.width;
    part.to += begin * a.width;
    if (a.mean != nullptr) part.mean += begin;
    part.rstd += begin;
    part.rows = end - begin;
    row_loops().layer_norm_backward(part);
  });
}

void layer_norm_backward_weights(ThreadPool& pool, const LayerNormWeightColumns& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, a.width, [&](int64_t begin, int64_t end) {
    LayerNormWeightColumns part = a;
    part.begin = begin;
    part.end = end;
    row_loops().layer_norm_weights(part);
  });
}

namespace {

// Stores bias and residual in `to` before the product adds to it, so that the sum is rounded only once.
void begin_linear(ThreadPool& pool, const Linear& l, const float* residual, Values to) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, l.rows, [&](int64_t begin, int64_t end) {
    row_loops().add_bias({to.from(begin * output_stride(l)),
                          residual == nullptr ? nullptr : residual + begin * l.outputs, l.bias, end - begin, l.outputs,
                          output_stride(l)});
  });
}

}  // namespace

Linear Linear::with_inputs(int64_t first, int64_t count) const {
  Linear part = *this;
  part.weight = weight.from(outputs_first ? first : first * aliquot::weight_stride(*this));
  part.weight_stride = aliquot::weight_stride(*this);
  part.input_stride = aliquot::input_stride(*this);
  part.inputs = count;
  return part;
}

Linear Linear::with_outputs(int64_t first, int64_t count) const {
  Linear part = *this;
  part.weight = weight.from(outputs_first ? first * aliquot::weight_stride(*this) : first);
  part.weight_stride = aliquot::weight_stride(*this);
  part.output_stride = aliquot::output_stride(*this);
  part.outputs = count;
  if (bias.data != nullptr) part.bias = bias.from(first);
  return part;
}

void linear_forward(ThreadPool& pool, const Linear& l, ConstValues x, const float* residual, Values to) {
  const ScopedWorkTimer timed(WorkKind::kProducts);
  const bool starts = l.bias.data != nullptr || residual != nullptr;
  if (starts) begin_linear(pool, l, residual, to);
  multiply(pool, forward_product(l, x, to, starts));
}

void linear_forward_add(ThreadPool& pool, const Linear& l, ConstValues x, Values to) {
  const ScopedWorkTimer timed(WorkKind::kProducts);
  multiply(pool, forward_product(l, x, to, true));
}

void linear_backward_input(ThreadPool& pool, const Linear& l, ConstValues from, Values to, bool add) {
  const ScopedWorkTimer timed(WorkKind::kProducts);
  multiply(pool, input_product(l, from, to, add));
}

void linear_backward_weights(ThreadPool& pool, const Linear& l, ConstValues x, ConstValues from,
                             const LinearGradients& to) {
  const ScopedWorkTimer timed(WorkKind::kProducts);
  multiply(pool, weight_product(l, x, from, to));
  if (to.bias.data == nullptr) return;
  const ScopedWorkTimer sums(WorkKind::kElementwise);
  sum_columns(pool, {to.bias, from, l.rows, output_stride(l), 0, l.outputs, to.add});
}

void sum_columns(ThreadPool& pool, const ColumnSums& a) {
  for_columns(pool, a.end - a.begin, [&](int64_t begin, int64_t end) {
    ColumnSums part = a;
    part.begin = a.begin + begin;
    part.end = a.begin + end;
    row_loops().sum_columns(part);
  });
}

void gelu_forward(ThreadPool& pool, Values to, ConstValues x, int64_t count) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, count,
              [&](int64_t begin, int64_t end) { row_loops().gelu(to.from(begin), x.from(begin), end - begin); });
}

void gelu_backward(ThreadPool& pool, Values gradient, ConstValues x, int64_t count) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, count, [&](int64_t begin, int64_t end) {
    row_loops().gelu_backward(gradient.from(begin), x.from(begin), end - begin);
  });
}

void gated_forward(ThreadPool& pool, Values to, const GatedElements& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, a.count, [&](int64_t begin, int64_t end) {
    row_loops().gated(to.from(begin), {a.gate.from(begin), a.up.from(begin), end - begin});
  });
}

void gated_backward(ThreadPool& pool, ConstValues from, const GatedElements& a) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, a.count, [&](int64_t begin, int64_t end) {
    row_loops().gated_backward(from.from(begin), {a.gate.from(begin), a.up.from(begin), end - begin});
  });
}

void rotate(ThreadPool& pool, const Rotary& r, Values x) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  const int64_t half = r.head_width / 2;
  for_rows(pool, r.batch * r.sequence, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t angles = row % r.sequence * half;
      for (int64_t head = 0; head < r.heads; ++head) {
        row_loops().rotate(
            {x.from(row * r.stride + head * r.head_width), r.cosines + angles, r.sines + angles, half, r.back});
      }
    }
  });
}

void convert(ThreadPool& pool, Values to, ConstValues from, int64_t count) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, count,
              [&](int64_t begin, int64_t end) { row_loops().convert(to.from(begin), from.from(begin), end - begin); });
}

void clear(ThreadPool& pool, Values to, int64_t count) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, count, [&](int64_t begin, int64_t end) {
    std::memset(to.from(begin).data, 0, static_cast<size_t>((end - begin) * element_bytes(to.type)));
  });
}

void add(ThreadPool& pool, float* to, const float* from, int64_t count) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_columns(pool, count, [&](int64_t begin, int64_t end) { row_loops().add(to + begin, from + begin, end - begin); });
}

void embedding_forward(ThreadPool& pool, const EmbeddingRows& e, ConstValues table, float* to) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, e.rows, [&](int64_t begin, int64_t end) { split_embedding_forward(e, table, to, {begin, end}); });
}

void embedding_backward(ThreadPool& pool, const EmbeddingRows& e, const float* from, Values table_gradient, bool add) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, add ? 0 : e.entries, [&](int64_t begin, int64_t end) {
    const Values to = table_gradient.from(begin * e.width);
    std::memset(to.data, 0, static_cast<size_t>((end - begin) * e.width * element_bytes(to.type)));
  });
  // Threads split columns, not rows: several rows may have the same token, and their order of addition must be fixed.
  for_columns(pool, e.width,
              [&](int64_t begin, int64_t end) { split_embedding_backward(e, from, table_gradient, begin, end); });
}

void positions_forward(ThreadPool& pool, const Positions& p, ConstValues table, const float* from, float* to) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, p.rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * p.width, from + row * p.width, static_cast<size_t>(p.width) * sizeof(float));
      row_loops().add(to + row * p.width, table.from((p.first_row + row) % p.sequence * p.width), p.width);
    }
  });
}

void positions_backward(ThreadPool& pool, const Positions& p, const float* from, Values table_gradient, bool add) {
  const ScopedWorkTimer timed(WorkKind::kElementwise);
  for_rows(pool, add ? p.sequence : p.context, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      const Values to = table_gradient.from(position * p.width);
      if (!add) std::memset(to.data, 0, static_cast<size_t>(p.width * element_bytes(to.type)));
      if (position >= p.sequence) continue;
      for (int64_t row = p.row_of(position); row < p.rows; row += p.sequence)
        row_loops().add(to, from + row * p.width, p.width);
    }
  });
}

}  // namespace aliquot
