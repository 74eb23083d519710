// The CUDA kernels of norms, with one warp for each row, for whole rows and for rows that ranks divide.
#include <cmath>

#include "kernels/layers/layers_cuda.h"
#include "kernels/layers/row_registers_cuda.h"
#include "kernels/layers/row_statistics.h"
#include "kernels/layers/row_sums_cuda.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {
namespace cuda {
namespace {

/// Stores the statistics of a row and normalizes it.
template <class E>
__device__ void normalize_row(const LayerNormRows& a, int64_t row, float mean, float rstd) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const auto* bias = static_cast<const typename E::Storage*>(a.bias.data);
  const float* x = a.x + row * a.width;
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

__device__ float sum_of_values(const LayerNormRows& a, int64_t row) {
  const float* x = a.x + row * a.width;
  return sum_of_row(a.width, [&](int64_t c) { return x[c]; });
}
__device__ float squared_differences(const LayerNormRows& a, int64_t row, float mean) {
  const float* x = a.x + row * a.width;
  return sum_of_row(a.width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
}

template <class E>
__global__ void norm_rows(const LayerNormRows a) {
  const float scale = 1.0f / static_cast<float>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float mean = a.mean == nullptr ? 0.0f : sum_of_values(a, row) * scale;
    normalize_row<E>(a, row, mean, 1.0f / sqrtf(squared_differences(a, row, mean) * scale + a.epsilon));
  }
}

/// Like norm_rows(), but reads each element of the row once.
template <class E, int kPacks>
__global__ void norm_rows_in_registers(const LayerNormRows a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const auto* bias = static_cast<const typename E::Storage*>(a.bias.data);
  const float scale = 1.0f / static_cast<float>(a.width);
  const int width = static_cast<int>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float* x = a.x + row * a.width;
    auto* to = static_cast<typename E::Storage*>(a.to.data) + row * a.width;
    LaneRow<kPacks> values;
    for_lane_packs<kPacks>(width, [&](int p, int column) { values[p] = load_pack<kPackElements>(x + column); });
    const auto value = [&](int p, int k) { return values[p].lane[k]; };
    const float mean = a.mean == nullptr ? 0.0f : sum_of_lane_packs<kPacks>(width, value) * scale;
    const float squares =
        sum_of_lane_packs<kPacks>(width, [&](int p, int k) { return (value(p, k) - mean) * (value(p, k) - mean); });
    const float rstd = 1.0f / sqrtf(squares * scale + a.epsilon);
    if (warp_lane() == 0) {
      if (a.mean != nullptr) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    for_lane_packs<kPacks>(width, [&](int p, int column) {
      auto& pack = values[p];
      const auto w = load_floats<E, kPackElements>(weight + column);
      for (int k = 0; k < kPackElements; ++k) pack.lane[k] = (pack.lane[k] - mean) * rstd * w.lane[k];
      if (bias != nullptr) {
        const auto b = load_floats<E, kPackElements>(bias + column);
        for (int k = 0; k < kPackElements; ++k) pack.lane[k] += b.lane[k];
      }
      store_floats<E, kPackElements>(to + column, pack);
    });
  }
}

__global__ void split_norm_sums(const LayerNormRows a, float* part) {
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float sum = a.mean == nullptr ? 0.0f : sum_of_values(a, row);
    const float mean = a.width == 0 ? 0.0f : sum / static_cast<float>(a.width);
    const float squares = squared_differences(a, row, mean);
    if (warp_lane() != 0) continue;
    part[row] = sum;
    part[a.rows + row] = squares;
    part[2 * a.rows + row] = static_cast<float>(a.width);
  }
}

template <class E>
__global__ void split_norm_rows(const LayerNormRows a, const SplitParts parts) {
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const RowMoments moments = combined_moments(parts, a.rows, row);
    normalize_row<E>(a, row, moments.mean, 1.0f / sqrtf(moments.variance + a.epsilon));
  }
}

/// A row of the backward of a norm: the normalized values n, and their gradients g.
template <class E>
struct GradientRow {
  const float *x, *from;
  const typename E::Storage* weight;
  float mean, rstd;

  __device__ GradientRow(const LayerNormBackwardRows& a, int64_t row)
      : x(a.x + row * a.width),
        from(a.from + row * a.width),
        weight(static_cast<const typename E::Storage*>(a.weight.data)),
        mean(a.mean == nullptr ? 0.0f : a.mean[row]),
        rstd(a.rstd[row]) {}
  __device__ float gradient(int64_t c) const { return from[c] * E::load(weight[c]); }
  __device__ float normal(int64_t c) const { return (x[c] - mean) * rstd; }

  /// The sums of g and of g n. An RMS norm does not use the sum of g.
  __device__ RowGradientMeans sums(const LayerNormBackwardRows& a) const {
    const float sum = a.mean == nullptr ? 0.0f : sum_of_row(a.width, [&](int64_t c) { return gradient(c); });
    return {sum, sum_of_row(a.width, [&](int64_t c) { return gradient(c) * normal(c); })};
  }
  /// dx = rstd (g - mean(g) - n mean(g n)).
  __device__ void put_gradient(const LayerNormBackwardRows& a, int64_t row, const RowGradientMeans& means) const {
    float* to = a.to + row * a.width;
    for (int64_t c = warp_lane(); c < a.width; c += kLanesPerWarp) {
      const float dx = (gradient(c) - means.gradient - normal(c) * means.with_normal) * rstd;
      to[c] = a.add ? to[c] + dx : dx;
    }
  }
};

template <class E>
__global__ void norm_rows_backward(const LayerNormBackwardRows a) {
  const float scale = 1.0f / static_cast<float>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const GradientRow<E> of(a, row);
    const RowGradientMeans sums = of.sums(a);
    of.put_gradient(a, row, {sums.gradient * scale, sums.with_normal * scale});
  }
}

/// Like norm_rows_backward(), but reads each element of the rows once. The launch bounds limit the registers, so that a
/// multiprocessor can run two or three blocks.
template <class E, int kPacks>
__global__ void __launch_bounds__(kLaunchThreads, kPacks > 6 ? 2 : 3)
    norm_rows_backward_in_registers(const LayerNormBackwardRows a) {
  const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
  const float scale = 1.0f / static_cast<float>(a.width);
  const int width = static_cast<int>(a.width);
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const float *x = a.x + row * a.width, *from = a.from + row * a.width;
    float* to = a.to + row * a.width;
    const float mean = a.mean == nullptr ? 0.0f : a.mean[row], rstd = a.rstd[row];
    LaneRow<kPacks> normals, gradients;
    for_lane_packs<kPacks>(width, [&](int p, int column) {
      normals[p] = load_pack<kPackElements>(x + column);
      gradients[p] = load_pack<kPackElements>(from + column);
      const auto w = load_floats<E, kPackElements>(weight + column);
      for (int k = 0; k < kPackElements; ++k) {
        normals[p].lane[k] = (normals[p].lane[k] - mean) * rstd;
        gradients[p].lane[k] *= w.lane[k];
      }
    });
    const auto normal = [&](int p, int k) { return normals[p].lane[k]; };
    const auto gradient = [&](int p, int k) { return gradients[p].lane[k]; };
    const float mean_gradient = a.mean == nullptr ? 0.0f : sum_of_lane_packs<kPacks>(width, gradient) * scale;
    const float with_normal =
        sum_of_lane_packs<kPacks>(width, [&](int p, int k) { return gradient(p, k) * normal(p, k); }) * scale;
    for_lane_packs<kPacks>(width, [&](int p, int column) {
      Pack<float, kPackElements> result;
      for (int k = 0; k < kPackElements; ++k)
        result.lane[k] = (gradient(p, k) - mean_gradient - normal(p, k) * with_normal) * rstd;
      if (a.add) {
        const auto before = load_pack<kPackElements>(to + column);
        for (int k = 0; k < kPackElements; ++k) result.lane[k] = before.lane[k] + result.lane[k];
      }
      store_pack(to + column, result);
    });
  }
}

template <class E>
__global__ void split_norm_backward_sums(const LayerNormBackwardRows a, float* part) {
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    const RowGradientMeans sums = GradientRow<E>(a, row).sums(a);
    if (warp_lane() != 0) continue;
    part[row] = sums.gradient;
    part[a.rows + row] = sums.with_normal;
    part[2 * a.rows + row] = static_cast<float>(a.width);
  }
}

template <class E>
__global__ void split_norm_rows_backward(const LayerNormBackwardRows a, const SplitParts parts) {
  for (int64_t row = launch_warp(); row < a.rows; row += launch_warp_stride()) {
    GradientRow<E>(a, row).put_gradient(a, row, combined_gradient_means(parts, a.rows, row));
  }
}

Grid rows_grid(int64_t rows) { return launch_grid(rows * kLanesPerWarp); }

}  // namespace

void layer_norm_forward(Stream& stream, const LayerNormRows& a) {
  as_element(a.to.type, [&]<class E>(E) {
    using Storage = typename E::Storage;
    const bool in_registers =
        rows_have_packs(a.width, a.x, static_cast<const Storage*>(a.weight.data),
                        static_cast<const Storage*>(a.bias.data), static_cast<const Storage*>(a.to.data)) &&
        with_lane_row<6, 8, 10, 16>(a.width, [&]<int kPacks>() {
          start_kernel(stream, "norm", rows_grid(a.rows), norm_rows_in_registers<E, kPacks>, a);
        });
    if (!in_registers) start_kernel(stream, "norm", rows_grid(a.rows), norm_rows<E>, a);
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardRows& a) {
  as_element(a.weight.type, [&]<class E>(E) {
    const auto* weight = static_cast<const typename E::Storage*>(a.weight.data);
    const bool in_registers =
        rows_have_packs(a.width, a.x, a.from, weight, static_cast<const float*>(a.to)) &&
        with_lane_row<6, 8, 10>(a.width, [&]<int kPacks>() {
          start_kernel(stream, "norm backward", rows_grid(a.rows), norm_rows_backward_in_registers<E, kPacks>, a);
        });
    if (!in_registers) start_kernel(stream, "norm backward", rows_grid(a.rows), norm_rows_backward<E>, a);
  });
}

}  // namespace cuda

void split_norm_statistics(Stream& stream, const LayerNormRows& norm, float* part) {
  start_kernel(stream, "statistics of a split norm", cuda::rows_grid(norm.rows), cuda::split_norm_sums, norm, part);
}

void split_norm_forward(Stream& stream, const LayerNormRows& norm, const SplitParts& parts) {
  cuda::as_element(norm.to.type, [&]<class E>(E) {
    start_kernel(stream, "split norm", cuda::rows_grid(norm.rows), cuda::split_norm_rows<E>, norm, parts);
  });
}

void split_norm_backward_statistics(Stream& stream, const LayerNormBackwardRows& norm, float* part) {
  cuda::as_element(norm.weight.type, [&]<class E>(E) {
    start_kernel(stream, "backward statistics of a split norm", cuda::rows_grid(norm.rows),
                 cuda::split_norm_backward_sums<E>, norm, part);
  });
}

void split_norm_backward(Stream& stream, const LayerNormBackwardRows& norm, const SplitParts& parts) {
  cuda::as_element(norm.weight.type, [&]<class E>(E) {
    start_kernel(stream, "split norm backward", cuda::rows_grid(norm.rows), cuda::split_norm_rows_backward<E>, norm,
                 parts);
  });
}

}  // namespace aliquot
