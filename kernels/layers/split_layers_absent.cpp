// The functions of split_layers.h for GPUs in a build without CUDA.
#include "kernels/layers/split_layers.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse() {
  throw UnavailableError(
      "this build of aliquot has no CUDA support: call the function without a stream, or install the CUDA toolkit and "
      "NCCL and rebuild with -DALIQUOT_CUDA=ON");
}

}  // namespace

void split_embedding_forward(Stream&, const EmbeddingRows&, ConstValues, float*) { refuse(); }
void split_embedding_backward(Stream&, const EmbeddingRows&, const TokenSortedRows&, const float*, Values) { refuse(); }
void split_loss_statistics(Stream&, const LogitTile&, const int32_t*, float*) { refuse(); }
void split_loss_forward(Stream&, const SplitLoss&) { refuse(); }
void split_loss_backward(Stream&, const LogitTile&, const LossRows&) { refuse(); }
void split_norm_statistics(Stream&, const LayerNormRows&, float*) { refuse(); }
void split_norm_forward(Stream&, const LayerNormRows&, const SplitParts&) { refuse(); }
void split_norm_backward_statistics(Stream&, const LayerNormBackwardRows&, float*) { refuse(); }
void split_norm_backward(Stream&, const LayerNormBackwardRows&, const SplitParts&) { refuse(); }
void split_norm_backward_weights(Stream&, const LayerNormWeightColumns&) { refuse(); }

}  // namespace aliquot
