// Norms of heads, with one warp for each head, and sums of columns.
#include <cmath>

#include "apps/models/cuda/layers_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/row_sums_cuda.h"

namespace aliquot::cuda {
namespace {

template <class To, class From>
__global__ void __launch_bounds__(kColumnThreads) sum_of_columns(const ColumnSums a) {
  __shared__ float parts[kRowsAtOnce][kColumns];
  const auto* from = static_cast<const typename From::Storage*>(a.from.data);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  float sum = 0.0f;
  for (int64_t row = part; row < a.rows && column < a.end; row += kRowsAtOnce) {
    sum += From::load(from[row * a.width + column]);
  }
  sum = sum_of_column(parts, sum);
  if (part == 0 && column < a.end) put_column<To>(static_cast<typename To::Storage*>(a.to.data) + column, sum, a.add);
}

/// One warp for each head, and one for the copied elements of each row.
template <class E>
__global__ void head_norm_rows(const HeadNorms a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const float scale = 1.0f / static_cast<float>(a.head_width);
  for (int64_t i = launch_warp(); i < a.rows * (a.heads + 1); i += launch_warp_stride()) {
    const int64_t row = i / (a.heads + 1), head = i % (a.heads + 1), at = row * a.stride + head * a.head_width;
    const auto* x = static_cast<const typename E::Storage*>(a.x.data) + at;
    auto* to = static_cast<typename E::Storage*>(a.to.data) + at;
    if (head == a.heads) {
      for (int64_t c = warp_lane(); c < a.copied; c += kLanesPerWarp) to[c] = x[c];
      continue;
    }
    const auto square = [&](int64_t c) { return E::load(x[c]) * E::load(x[c]); };
    const float rstd = 1.0f / sqrtf(sum_of_row(a.head_width, square) * scale + a.epsilon);
    if (warp_lane() == 0) a.rstd[row * a.heads + head] = rstd;
    for (int64_t c = warp_lane(); c < a.head_width; c += kLanesPerWarp) {
      to[c] = E::store(E::load(x[c]) * rstd * E::load(weight[c]));
    }
  }
}

template <class E>
__global__ void head_norm_rows_backward(const HeadNormsBackward a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const float scale = 1.0f / static_cast<float>(a.head_width);
  for (int64_t i = launch_warp(); i < a.rows * a.heads; i += launch_warp_stride()) {
    const int64_t at = i / a.heads * a.stride + i % a.heads * a.head_width;
    const auto* x = static_cast<const typename E::Storage*>(a.x.data) + at;
    auto* gradient = static_cast<typename E::Storage*>(a.gradient.data) + at;
    const float rstd = a.rstd[i];
    const auto of_normal = [&](int64_t c) { return E::load(gradient[c]) * E::load(weight[c]); };
    const auto normal = [&](int64_t c) { return E::load(x[c]) * rstd; };
    const float mean = sum_of_row(a.head_width, [&](int64_t c) { return of_normal(c) * normal(c); }) * scale;
    for (int64_t c = warp_lane(); c < a.head_width; c += kLanesPerWarp) {
      gradient[c] = E::store((of_normal(c) - normal(c) * mean) * rstd);
    }
  }
}

template <class E>
__global__ void __launch_bounds__(kColumnThreads) head_norm_columns(const HeadNormsWeight a) {
  __shared__ float parts[kRowsAtOnce][kColumns];
  const auto* x = static_cast<const typename E::Storage*>(a.x.data);
  const auto* gradient = static_cast<const typename E::Storage*>(a.gradient.data);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t rstd_stride = a.rstd_stride == 0 ? a.heads : a.rstd_stride;
  float sum = 0.0f;
  for (int64_t i = part; i < a.rows * a.heads && column < a.head_width; i += kRowsAtOnce) {
    const int64_t at = i / a.heads * a.stride + i % a.heads * a.head_width + column;
    sum += E::load(gradient[at]) * (E::load(x[at]) * a.rstd[i / a.heads * rstd_stride + i % a.heads]);
  }
  sum = sum_of_column(parts, sum);
  if (part == 0 && column < a.head_width) a.to[column] = sum;
}

}  // namespace

void sum_columns(Stream& stream, const ColumnSums& a) {
  as_element(a.to.type, [&]<class To>(To) {
    as_element(a.from.type, [&]<class From>(From) {
      start_kernel(stream, "column sums", columns_grid(a.end), sum_of_columns<To, From>, a);
    });
  });
}

void head_norms_forward(Stream& stream, const HeadNorms& a) {
  as_element(a.x.type, [&]<class E>(E) {
    start_kernel(stream, "head norms", launch_grid(a.rows * (a.heads + 1) * kLanesPerWarp), head_norm_rows<E>, a);
  });
}

void head_norms_backward(Stream& stream, const HeadNormsBackward& a) {
  as_element(a.x.type, [&]<class E>(E) {
    start_kernel(stream, "head norms backward", launch_grid(a.rows * a.heads * kLanesPerWarp),
                 head_norm_rows_backward<E>, a);
  });
}

void head_norms_backward_weight(Stream& stream, const HeadNormsWeight& a) {
  as_element(a.x.type, [&]<class E>(E) {
    start_kernel(stream, "head norm weight", columns_grid(a.head_width), head_norm_columns<E>, a);
  });
}

}  // namespace aliquot::cuda
