// The operations of the Newton-Schulz iteration on a GPU.

#include <utility>

#include "kernels/device/device_cuda.h"
#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/formats/float16.h"
#include "kernels/gemm/product_choices.h"
#include "kernels/gemm/product_cuda.h"
#include "optim/muon/newton_schulz.h"

namespace aliquot {
namespace {

/// A CUDA thread block computes kTile x kTile elements of the product. Each thread computes kThreadTile x kThreadTile
/// of these elements in registers.
constexpr int kTile = 64, kDepth = 16, kThreadTile = 4;
constexpr int kThreadsAcross = kTile / kThreadTile;
static_assert(kThreadsAcross * kThreadsAcross == kLaunchThreads);

/// Loads rows [first_row, first_row + kTile) and columns [first_k, first_k + kDepth). Elements outside the matrix are
/// zero, which does not change a sum that starts from +0.
__device__ void load_tile_of_a(float (*tile)[kTile], const ConstMatrix& a, int64_t first_row, int64_t first_k) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kLaunchThreads) {
    const int64_t row = first_row + i / kDepth, k = first_k + i % kDepth;
    tile[i % kDepth][i / kDepth] = row < a.rows && k < a.columns ? a.data[row * a.columns + k] : 0.0f;
  }
}

__device__ void load_tile_of_b(float (*tile)[kTile], const ConstMatrix& b, int64_t first_k, int64_t first_column) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kLaunchThreads) {
    const int64_t k = first_k + i / kTile, column = first_column + i % kTile;
    tile[i / kTile][i % kTile] = k < b.rows && column < b.columns ? b.data[k * b.columns + column] : 0.0f;
  }
}

/// One thread computes the sum of an element in ascending order of k, so GPU and host give the same bits.
__global__ void __launch_bounds__(kLaunchThreads) multiply_tiles(float* to, const ConstMatrix a, const ConstMatrix b) {
  __shared__ float of_a[kDepth][kTile], of_b[kDepth][kTile];
  const int64_t tiles_across = (b.columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / tiles_across * kTile, first_column = blockIdx.x % tiles_across * kTile;
  const int row = static_cast<int>(threadIdx.x) / kThreadsAcross * kThreadTile;
  const int column = static_cast<int>(threadIdx.x) % kThreadsAcross * kThreadTile;
  float sums[kThreadTile][kThreadTile] = {};
  for (int64_t k = 0; k < a.columns; k += kDepth) {
    load_tile_of_a(of_a, a, first_row, k);
    load_tile_of_b(of_b, b, k, first_column);
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < kThreadTile; ++i) {
        for (int j = 0; j < kThreadTile; ++j) sums[i][j] = sums[i][j] + of_a[depth][row + i] * of_b[depth][column + j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kThreadTile; ++i) {
    for (int j = 0; j < kThreadTile; ++j) {
      const int64_t at_row = first_row + row + i, at_column = first_column + column + j;
      if (at_row < a.rows && at_column < b.columns) to[at_row * b.columns + at_column] = sums[i][j];
    }
  }
}

/// Transposes through shared memory, so that reads and writes are coalesced.
constexpr int kTransposeTile = 32;
__global__ void __launch_bounds__(kLaunchThreads) transpose_tiles(float* to, const ConstMatrix from) {
  __shared__ float tile[kTransposeTile][kTransposeTile + 1];
  constexpr int kRowsAtOnce = kLaunchThreads / kTransposeTile;
  const int64_t tiles_across = (from.columns + kTransposeTile - 1) / kTransposeTile;
  const int64_t first_row = blockIdx.x / tiles_across * kTransposeTile;
  const int64_t first_column = blockIdx.x % tiles_across * kTransposeTile;
  const int x = static_cast<int>(threadIdx.x) % kTransposeTile, y = static_cast<int>(threadIdx.x) / kTransposeTile;
  for (int r = y; r < kTransposeTile; r += kRowsAtOnce) {
    if (first_row + r < from.rows && first_column + x < from.columns)
      tile[r][x] = from.data[(first_row + r) * from.columns + first_column + x];
  }
  __syncthreads();
  for (int c = y; c < kTransposeTile; c += kRowsAtOnce) {
    if (first_column + c < from.columns && first_row + x < from.rows)
      to[(first_column + c) * from.rows + first_row + x] = tile[x][c];
  }
}

/// Pairwise summation in one thread block, in the same order as on the host: adds adjacent values, then adjacent sums.
__global__ void __launch_bounds__(kLaunchThreads) sum_pairwise(double* sums, int64_t count) {
  for (int64_t half = 1; half < count; half *= 2) {
    for (int64_t i = 2 * half * threadIdx.x; i + half < count; i += 2 * half * kLaunchThreads)
      sums[i] += sums[i + half];
    __syncthreads();
  }
}

struct ScaleByInverseNorm {
  float* values;
  const double* sum;
  float eps;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const float factor = inverse_norm(*sum, eps);
    for (int k = 0; k < kCount; ++k) values[i + k] *= factor;
  }
};

struct Blend {
  float *to, x, y;
  const float* from;
  template <int kCount>
  __device__ void at(int64_t i) const {
    for (int k = 0; k < kCount; ++k) to[i + k] = x * to[i + k] + y * from[i + k];
  }
};

struct ToBf16 {
  float* values;
  template <int kCount>
  __device__ void at(int64_t i) const {
    for (int k = 0; k < kCount; ++k) values[i + k] = bf16_to_float(float_to_bf16(values[i + k]));
  }
};

Grid tile_grid(int64_t rows, int64_t columns, int64_t edge) {
  return {static_cast<unsigned>((rows + edge - 1) / edge * ((columns + edge - 1) / edge)), kLaunchThreads};
}

struct CudaMatrixLoops {
  Stream& stream;
  const Kernels& kernels;

  void transpose(float* to, const ConstMatrix& from) const {
    start_kernel(stream, "transpose", tile_grid(from.rows, from.columns, kTransposeTile), transpose_tiles, to, from);
  }
  void multiply(float* to, const ConstMatrix& a, const ConstMatrix& b) const {
    start_kernel(stream, "multiply", tile_grid(a.rows, b.columns, kTile), multiply_tiles, to, a, b);
  }
  void copy(float* to, const float* from, int64_t count) const { kernels.copy(stream, to, from, 4 * count); }
  void scale(float* values, float factor, int64_t count) const { kernels.scale(stream, values, factor, count); }
  void blend(float* to, float x, float y, const float* from, int64_t count) const {
    launch_elements(stream, "blend", count, Blend{to, x, y, from}, to, from);
  }
  void round(float* values, int64_t count) const {
    launch_elements(stream, "round to bf16", count, ToBf16{values}, values);
  }
  void sum_squares(const float* values, int64_t count, double* sums) const {
    kernels.block_squares(stream, sums, values, count);
    start_kernel(stream, "sum pairwise", {1, kLaunchThreads}, sum_pairwise, sums,
                 (count + kBlockElements - 1) / kBlockElements);
  }
  void normalize(float* values, int64_t count, double* sums, float eps) const {
    sum_squares(values, count, sums);
    launch_elements(stream, "normalize", count, ScaleByInverseNorm{values, sums, eps}, values);
  }
};

struct NormalizeToBf16 {
  uint16_t* to;
  const float* from;
  const double* sum;
  float eps;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const float factor = inverse_norm(*sum, eps);
    for (int k = 0; k < kCount; ++k) to[i + k] = float_to_bf16(from[i + k] * factor);
  }
};

struct ScaleFromBf16 {
  float* to;
  const uint16_t* from;
  float factor;
  template <int kCount>
  __device__ void at(int64_t i) const {
    for (int k = 0; k < kCount; ++k) to[i + k] = bf16_to_float(from[i + k]) * factor;
  }
};

/// The iteration of newton_schulz() with Muon::products = bf16 on tensor cores. Rounds the same values as
/// newton_schulz(). The memory of `x` first holds the transpose of a tall matrix in fp32, and later the workspace of
/// cuBLASLt.
class Bf16Iteration {
 public:
  Bf16Iteration(Stream& stream, CudaProducts& products, const OrthogonalizeArgs& args)
      : loops_{stream, cuda_kernels()},
        products_(products),
        args_(args),
        layout_(args.shape),
        tall_(args.shape.rows > args.shape.columns),
        n_(layout_.small),
        length_(tall_ ? args.shape.rows : args.shape.columns),
        wide_(reinterpret_cast<float*>(args.scratch + layout_.sums_bytes())),
        x_(reinterpret_cast<uint16_t*>(args.scratch + layout_.sums_bytes() + layout_.matrix_bytes)),
        next_(x_ + layout_.matrix_bytes / 4),
        gram_(x_ + layout_.matrix_bytes / 2),
        product_(gram_ + layout_.gram_bytes / 2) {}

  void run() {
    normalize();
    for (int i = 0; i < args_.iterations; ++i) iterate();
    store();
  }

 private:
  void normalize() const {
    const int64_t count = n_ * length_;
    auto* sums = reinterpret_cast<double*>(args_.scratch);
    if (tall_) loops_.transpose(wide_, {args_.matrix, args_.shape.rows, args_.shape.columns});
    const float* from = tall_ ? wide_ : args_.matrix;
    loops_.sum_squares(from, count, sums);
    launch_elements(loops_.stream, "normalize", count, NormalizeToBf16{x_, from, sums, args_.eps}, x_, from);
  }

  void iterate() {
    const Matrix x{x_, length_}, gram{gram_, n_};
    multiply(
        {.a = x, .b = {x_, length_, true}, .to = gram_, .to_stride = n_, .rows = n_, .columns = n_, .depth = length_},
        {});
    multiply({.a = gram,
              .b = gram,
              .to = product_,
              .to_stride = n_,
              .rows = n_,
              .columns = n_,
              .depth = n_,
              .factor = kQuintic},
             {.added = gram_, .added_factor = kCubic});
    multiply(
        {.a = {product_, n_}, .b = x, .to = next_, .to_stride = length_, .rows = n_, .columns = length_, .depth = n_},
        {.added = x_, .added_factor = kLinear});
    std::swap(x_, next_);
  }

  void store() const {
    const auto factor = static_cast<float>(matrix_rate_factor(args_.shape, args_.rate));
    float* to = tall_ ? wide_ : args_.matrix;
    launch_elements(loops_.stream, "scale", n_ * length_, ScaleFromBf16{to, x_, factor}, to, x_);
    if (tall_) loops_.transpose(args_.matrix, {wide_, n_, length_});
  }

  void multiply(Product product, ProductEpilogue extra) const {
    product.scratch = wide_;
    extra.scratch_bytes = layout_.matrix_bytes;
    products_.multiply(loops_.stream, product, extra);
  }

  const CudaMatrixLoops loops_;
  CudaProducts& products_;
  const OrthogonalizeArgs& args_;
  const NewtonSchulzScratch layout_;
  const bool tall_;
  const int64_t n_, length_;
  float* const wide_;
  uint16_t *x_, *next_, *const gram_, *const product_;
};

class CudaOrthogonalizer final : public Orthogonalizer {
 public:
  CudaOrthogonalizer(CudaDevice& device, DType products) {
    if (products != DType::kBFloat16) return;
    products_ = std::make_unique<CudaProducts>(device, ProductSettings{.choices_file = product_choices_file()});
  }

  void orthogonalize(Stream& stream, const OrthogonalizeArgs& args) override {
    if (products_ == nullptr) return newton_schulz(args, CudaMatrixLoops{stream, cuda_kernels()});
    Bf16Iteration(stream, *products_, args).run();
  }

 private:
  std::unique_ptr<CudaProducts> products_;  // only with bf16 products
};

}  // namespace

std::unique_ptr<Orthogonalizer> make_cuda_orthogonalizer(Device& device, DType products) {
  return std::make_unique<CudaOrthogonalizer>(cuda_device(device), products);
}

}  // namespace aliquot
