#include "apps/models/activations.h"

#include "apps/models/gpt2.h"

namespace aliquot {

ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, int threads) {
  ThreadPool pool(threads);
  if (shape.family == ModelFamily::kGpt2) return Gpt2(shape, options, pool).activations();
  return {};
}

}  // namespace aliquot
