#include "kernels/elementwise/kernels_cuda.h"

#include "kernels/device/device_cuda.h"

namespace aliquot {

const Kernels& cuda_kernels() {
  static constexpr Kernels kKernels{.copy = cuda::copy,
                                    .fill = cuda::fill,
                                    .scale = cuda::scale,
                                    .add = cuda::add,
                                    .axpy = cuda::axpy,
                                    .cast = cuda::cast,
                                    .split = cuda::split,
                                    .merge = cuda::merge,
                                    .sum_tree = cuda::sum_tree,
                                    .block_squares = cuda::block_squares,
                                    .block_largest = cuda::block_largest,
                                    .block_fixed_squares = cuda::block_fixed_squares,
                                    .sum_runs = cuda::sum_runs,
                                    .find_nonfinite = cuda::find_nonfinite,
                                    .encode = cuda::encode,
                                    .decode = cuda::decode,
                                    .block_digests = cuda::block_digests,
                                    .digest_sum = cuda::digest_sum};
  return kKernels;
}

}  // namespace aliquot
