#include "apps/models/cuda/model_loops_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {

std::unique_ptr<ModelLoops> make_cuda_model_loops(Device&) {
  throw UnavailableError("this build has no GPU parts: give --device host, or configure with -DALIQUOT_CUDA=ON.");
}

}  // namespace aliquot
