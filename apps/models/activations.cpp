#include "apps/models/activations.h"

#include "apps/models/make_model.h"

namespace aliquot {

ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, int threads) {
  ThreadPool pool(1);  // nothing is computed
  const auto loops = make_host_model_loops(pool, threads);
  return make_model(shape, options, *loops)->activations();
}

}  // namespace aliquot
