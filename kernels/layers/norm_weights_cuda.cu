// The gradients of a norm's weight and bias on a GPU: sums over the rows.
#include "kernels/layers/column_sums_cuda.h"
#include "kernels/layers/layers_cuda.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {
namespace cuda {
namespace {

/// The first sum is the gradient of the weight, the second one that of the bias.
template <int kSumCount>
struct NormTerms {
  static constexpr int kSums = kSumCount;
  const float *x, *from, *mean, *rstd;
  int64_t width;

  template <int kPack>
  struct Row {
    Pack<float, kPack> x, from;
    float mean, rstd;
  };
  template <int kPack>
  __device__ Row<kPack> load(int64_t row, int64_t column) const {
    const int64_t at = row * width + column;
    return {load_pack<kPack>(x + at), load_pack<kPack>(from + at), mean == nullptr ? 0.0f : mean[row], rstd[row]};
  }
  template <int kPack>
  __device__ void add(const Row<kPack>& row, float (&sums)[kSums][kPack]) const {
    for (int k = 0; k < kPack; ++k) {
      sums[0][k] += row.from.lane[k] * ((row.x.lane[k] - row.mean) * row.rstd);
      if constexpr (kSums == 2) sums[1][k] += row.from.lane[k];
    }
  }
};

template <int kSums>
void sum_norm_columns(Stream& stream, const LayerNormWeightColumns& a, const ColumnResults<kSums>& to) {
  constexpr int kPack = kLoadElements<float>;
  const NormTerms<kSums> terms{a.x, a.from, a.mean, a.rstd, a.width};
  if (columns_have_packs<kPack>(a.width, a.width, a.x) && columns_have_packs<kPack>(a.width, a.width, a.from)) {
    start_column_sums<kPack>(stream, "norm weights", terms, to, a.scratch);
  } else {
    start_column_sums<1>(stream, "norm weights", terms, to, a.scratch);
  }
}

}  // namespace

void layer_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& a) {
  if (a.bias.data == nullptr) {
    sum_norm_columns<1>(stream, a, {{a.weight}, a.rows, a.width, a.add});
  } else {
    sum_norm_columns<2>(stream, a, {{a.weight, a.bias}, a.rows, a.width, a.add});
  }
}

}  // namespace cuda

void split_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& norm) {
  cuda::layer_norm_backward_weights(stream, norm);
}

}  // namespace aliquot
