#include "kernels/device_cuda.h"
#include "tests/kernels/shared_functions_cuda.h"

namespace aliquot {
namespace {

__global__ void draw_normals(float* to, RandomKey key, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = random_normal(key, i);
}

}  // namespace

void draw_normals_cuda(Stream& stream, float* to, RandomKey key, int64_t count) {
  const cudaStream_t queue = cuda_stream(stream);
  draw_normals<<<static_cast<unsigned>((count + 255) / 256), 256, 0, queue>>>(to, key, count);
  check_launch("draw_normals");
}

}  // namespace aliquot
