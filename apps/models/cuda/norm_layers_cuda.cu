// Norms of heads, with one warp for each head, and sums of columns.
#include <cmath>

#include "apps/models/cuda/layers_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/column_sums_cuda.h"
#include "kernels/layers/row_sums_cuda.h"

namespace aliquot::cuda {
namespace {

template <class From>
struct ColumnTerms {
  static constexpr int kSums = 1;
  const typename From::Storage* from;
  int64_t stride;

  template <int kPack>
  using Row = Pack<typename From::Storage, kPack>;
  template <int kPack>
  __device__ Row<kPack> load(int64_t row, int64_t column) const {
    return load_pack<kPack>(from + row * stride + column);
  }
  template <int kPack>
  __device__ void add(const Row<kPack>& row, float (&sums)[kSums][kPack]) const {
    for (int k = 0; k < kPack; ++k) sums[0][k] += From::load(row.lane[k]);
  }
};

/// The rows of these sums are all heads of the first row, then those of the second one, and so on. Their number fits
/// into 32 bits.
template <class E>
struct HeadNormTerms {
  static constexpr int kSums = 1;
  const typename E::Storage *x, *gradient;
  const float* rstd;
  unsigned heads;
  int64_t head_width, stride, rstd_stride;

  template <int kPack>
  struct Row {
    Pack<typename E::Storage, kPack> x, gradient;
    float rstd;
  };
  template <int kPack>
  __device__ Row<kPack> load(int64_t item, int64_t column) const {
    const unsigned row = static_cast<unsigned>(item) / heads, head = static_cast<unsigned>(item) % heads;
    const int64_t at = row * stride + head * head_width + column;
    return {load_pack<kPack>(x + at), load_pack<kPack>(gradient + at), rstd[row * rstd_stride + head]};
  }
  template <int kPack>
  __device__ void add(const Row<kPack>& row, float (&sums)[kSums][kPack]) const {
    for (int k = 0; k < kPack; ++k) sums[0][k] += E::load(row.gradient.lane[k]) * (E::load(row.x.lane[k]) * row.rstd);
  }
};

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

}  // namespace

void sum_columns(Stream& stream, const ColumnSums& a) {
  as_element(a.from.type, [&]<class From>(From of) {
    constexpr int kPack = kLoadElements<typename From::Storage>;
    const ColumnTerms<From> terms{data_as(a.from, of), a.width};
    const ColumnResults<1> to{{a.to}, a.rows, a.end, a.add};
    if (columns_have_packs<kPack>(a.end, a.width, terms.from)) {
      start_column_sums<kPack>(stream, "column sums", terms, to, a.scratch);
    } else {
      start_column_sums<1>(stream, "column sums", terms, to, a.scratch);
    }
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
  as_element(a.x.type, [&]<class E>(E of) {
    constexpr int kPack = kLoadElements<typename E::Storage>;
    const HeadNormTerms<E> terms{data_as(a.x, of),
                                 data_as(a.gradient, of),
                                 a.rstd,
                                 static_cast<unsigned>(a.heads),
                                 a.head_width,
                                 a.stride,
                                 a.rstd_stride == 0 ? a.heads : a.rstd_stride};
    const ColumnResults<1> to{{a.to}, a.rows * a.heads, a.head_width, false};
    if (columns_have_packs<kPack>(a.head_width, a.stride, terms.x) &&
        columns_have_packs<kPack>(a.head_width, a.stride, terms.gradient)) {
      start_column_sums<kPack>(stream, "head norm weight", terms, to, a.scratch);
    } else {
      start_column_sums<1>(stream, "head norm weight", terms, to, a.scratch);
    }
  });
}

}  // namespace aliquot::cuda
