#include "kernels/device/start_kernel_cuda.h"
#include "tests/kernels/elementwise/shared_functions_cuda.h"

namespace aliquot {
namespace {

__global__ void draw_normals(float* to, RandomKey key, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = random_normal(key, i);
}

}  // namespace

void draw_normals_cuda(Stream& stream, float* to, RandomKey key, int64_t count) {
  start_kernel(stream, "draw_normals", {static_cast<unsigned>((count + 255) / 256), 256}, draw_normals, to, key, count);
}

}  // namespace aliquot
