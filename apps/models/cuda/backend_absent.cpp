#include "apps/models/cuda/backend_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {

std::unique_ptr<Backend> make_cuda_backend(Device&, const ProductSettings&, AttentionKernels) {
  throw UnavailableError("this build has no CUDA support: use --device host, or configure with -DALIQUOT_CUDA=ON.");
}

}  // namespace aliquot
