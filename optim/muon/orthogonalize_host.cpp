#include <algorithm>
#include <stdexcept>

#include "kernels/device/host_stream.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/float16.h"
#include "kernels/gemm/loops.h"
#include "kernels/gemm/product.h"
#include "optim/muon/newton_schulz.h"

namespace aliquot {
namespace {

/// to[j][i] = a[i][j].
void transpose_parallel(ThreadPool& pool, float* to, const ConstMatrix& a) {
  constexpr int64_t kTile = 16;
  pool.for_ranges(a.rows, kTile, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kTile) {
      for (int64_t j = 0; j < a.columns; j += kTile) {
        for (int64_t r = i; r < std::min(end, i + kTile); ++r) {
          for (int64_t c = j; c < std::min(a.columns, j + kTile); ++c) to[c * a.rows + r] = a.data[r * a.columns + c];
        }
      }
    }
  });
}

struct HostMatrixLoops {
  Isa isa;
  ThreadPool& pool;

  void transpose(float* to, const ConstMatrix& from) const { transpose_parallel(pool, to, from); }
  /// Rounds each operation separately, like the other devices.
  void multiply(float* to, const ConstMatrix& a, const ConstMatrix& b) const {
    if (a.columns != b.rows)
      throw std::invalid_argument("orthogonalize: the number of columns of a differs from the number of rows of b");
    aliquot::multiply(pool,
                      {.a = {a.data, a.columns},
                       .b = {b.data, b.columns},
                       .to = to,
                       .to_stride = b.columns,
                       .rows = a.rows,
                       .columns = b.columns,
                       .depth = a.columns},
                      product_loops(isa, SumRounding::kSeparate));
  }
  template <typename Body>
  void for_element_ranges(int64_t count, const Body& body) const {
    pool.for_ranges(count, 16 * kBlockElements, body);
  }
  void copy(float* to, const float* from, int64_t count) const {
    for_element_ranges(count, [&](int64_t begin, int64_t end) { std::copy_n(from + begin, end - begin, to + begin); });
  }
  void scale(float* values, float factor, int64_t count) const {
    for_element_ranges(count,
                       [&](int64_t begin, int64_t end) { host_loops(isa).scale(values + begin, factor, end - begin); });
  }
  void blend(float* to, float x, float y, const float* from, int64_t count) const {
    for_element_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = x * to[i] + y * from[i];
    });
  }
  void round(float* values, int64_t count) const {
    for_element_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] = bf16_to_float(float_to_bf16(values[i]));
    });
  }
  /// Adds the sums of blocks pairwise, in an order that does not depend on the number of threads.
  void normalize(float* values, int64_t count, double* sums, float eps) const {
    for_element_ranges(count, [&](int64_t begin, int64_t end) {
      host_loops(isa).block_squares(sums + begin / kBlockElements, values + begin, end - begin);
    });
    const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
    for (int64_t half = 1; half < blocks; half *= 2) {
      for (int64_t i = 0; i + half < blocks; i += 2 * half) sums[i] += sums[i + half];
    }
    scale(values, inverse_norm(sums[0], eps), count);
  }
};

class HostOrthogonalizer final : public Orthogonalizer {
 public:
  void orthogonalize(Stream& stream, const OrthogonalizeArgs& args) override {
    HostStream& worker = as_host_stream(stream);
    worker.run([args, &pool = worker.pool()] { orthogonalize_on_host(args, pool); });
  }
};

}  // namespace

int64_t orthogonalize_scratch_bytes(const MatrixShape& shape) { return NewtonSchulzScratch(shape).bytes(); }

void orthogonalize_on_host(const OrthogonalizeArgs& args, ThreadPool& pool) {
  newton_schulz(args, HostMatrixLoops{best_isa(), pool});
}

std::unique_ptr<Orthogonalizer> make_orthogonalizer(Device& device, DType products) {
  if (device.kind() == DeviceKind::kCuda) return make_cuda_orthogonalizer(device, products);
  return std::make_unique<HostOrthogonalizer>();
}

}  // namespace aliquot
