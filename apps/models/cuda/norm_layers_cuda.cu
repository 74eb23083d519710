// Norms of rows and of heads, with one warp for each row or head, and sums of columns.
#include <cmath>

#include "apps/models/cuda/elements_cuda.h"
#include "apps/models/cuda/layers_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"

namespace aliquot::cuda {
namespace {

/// The sum of term(c) over the columns c of a row, in fp32. Each lane adds columns lane, lane + 32, ...
template <class Term>
__device__ float sum_of_row(int64_t width, const Term& term) {
  float sum = 0.0f;
  for (int64_t c = warp_lane(); c < width; c += kLanesPerWarp) sum += term(c);
  return sum_of_lanes(sum);
}

template <class E>
__global__ void norm_rows(const LayerNormRows a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const auto* bias = static_cast<const typename E::Storage*>(a.bias.data);
  const float scale = 1.0f / static_cast<float>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float* x = a.x + row * a.width;
    const float mean = a.mean == nullptr ? 0.0f : sum_of_row(a.width, [&](int64_t c) { return x[c]; }) * scale;
    const float squares = sum_of_row(a.width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
    const float rstd = 1.0f / sqrtf(squares * scale + a.epsilon);
    if (warp_lane() == 0) {
      if (a.mean != nullptr) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    auto* to = static_cast<typename E::Storage*>(a.to.data) + row * a.width;
    for (int64_t c = warp_lane(); c < a.width; c += kLanesPerWarp) {
      const float normal = (x[c] - mean) * rstd * E::load(weight[c]);
      to[c] = E::store(bias == nullptr ? normal : normal + E::load(bias[c]));
    }
  }
}

/// For the normalized row n and its gradient g: dx = rstd (g - mean(g) - n mean(g n)). An RMS norm has no term mean(g).
template <class E>
__global__ void norm_rows_backward(const LayerNormBackwardRows a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const float scale = 1.0f / static_cast<float>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float *x = a.x + row * a.width, *from = a.from + row * a.width;
    const float mean = a.mean == nullptr ? 0.0f : a.mean[row], rstd = a.rstd[row];
    const auto gradient = [&](int64_t c) { return from[c] * E::load(weight[c]); };
    const auto normal = [&](int64_t c) { return (x[c] - mean) * rstd; };
    const float mean_gradient = a.mean == nullptr ? 0.0f : sum_of_row(a.width, gradient) * scale;
    const float mean_with_normal = sum_of_row(a.width, [&](int64_t c) { return gradient(c) * normal(c); }) * scale;
    float* to = a.to + row * a.width;
    for (int64_t c = warp_lane(); c < a.width; c += kLanesPerWarp) {
      const float dx = (gradient(c) - mean_gradient - normal(c) * mean_with_normal) * rstd;
      to[c] = a.add ? to[c] + dx : dx;
    }
  }
}

/// A thread block sums kColumns columns. Each thread adds every kRowsAtOnce-th row of one column; then a tree adds the
/// threads' sums, in a fixed order.
constexpr int kColumns = 16, kColumnThreads = 1024, kRowsAtOnce = kColumnThreads / kColumns;

__device__ float sum_of_column(float (*parts)[kColumns], float own) {
  const int column = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  __syncthreads();  // all threads have read the result of the previous call
  parts[part][column] = own;
  for (int half = kRowsAtOnce / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part < half) parts[part][column] += parts[part + half][column];
  }
  return parts[0][column];  // only the threads of part 0 have the sum
}

template <class To>
__device__ void put_column(typename To::Storage* to, float sum, bool add) {
  *to = To::store(add ? To::load(*to) + sum : sum);
}

template <class To>
__global__ void __launch_bounds__(kColumnThreads) norm_columns(const LayerNormWeightColumns a) {
  __shared__ float parts[kRowsAtOnce][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  float weight = 0.0f, bias = 0.0f;
  for (int64_t row = part; row < a.rows && column < a.width; row += kRowsAtOnce) {
    const float g = a.from[row * a.width + column], mean = a.mean == nullptr ? 0.0f : a.mean[row];
    weight += g * ((a.x[row * a.width + column] - mean) * a.rstd[row]);
    bias += g;
  }
  weight = sum_of_column(parts, weight);
  bias = sum_of_column(parts, bias);
  if (part > 0 || column >= a.width) return;
  put_column<To>(static_cast<typename To::Storage*>(a.weight.data) + column, weight, a.add);
  if (a.bias.data != nullptr) put_column<To>(static_cast<typename To::Storage*>(a.bias.data) + column, bias, a.add);
}

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
  float sum = 0.0f;
  for (int64_t i = part; i < a.rows * a.heads && column < a.head_width; i += kRowsAtOnce) {
    const int64_t at = i / a.heads * a.stride + i % a.heads * a.head_width + column;
    sum += E::load(gradient[at]) * (E::load(x[at]) * a.rstd[i]);
  }
  sum = sum_of_column(parts, sum);
  if (part == 0 && column < a.head_width) a.to[column] = sum;
}

Grid columns_grid(int64_t width) { return {static_cast<unsigned>((width + kColumns - 1) / kColumns), kColumnThreads}; }

}  // namespace

void layer_norm_forward(Stream& stream, const LayerNormRows& a) {
  as_element(a.to.type,
             [&]<class E>(E) { start_kernel(stream, "norm", launch_grid(a.rows * kLanesPerWarp), norm_rows<E>, a); });
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardRows& a) {
  as_element(a.weight.type, [&]<class E>(E) {
    start_kernel(stream, "norm backward", launch_grid(a.rows * kLanesPerWarp), norm_rows_backward<E>, a);
  });
}

void layer_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& a) {
  as_element(a.weight.type,
             [&]<class To>(To) { start_kernel(stream, "norm weights", columns_grid(a.width), norm_columns<To>, a); });
}

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
