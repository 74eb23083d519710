#include "apps/models/cuda/fused_attention_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {

std::unique_ptr<FusedAttentionLibrary> make_cudnn_attention(const CudaDevice&) {
  throw UnavailableError("this build has no cuDNN: use --attention own, or configure with -DALIQUOT_CUDNN=ON.");
}

}  // namespace aliquot
