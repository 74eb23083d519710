#include "apps/models/activations.h"

#include "apps/models/make_model.h"

namespace aliquot {

ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options) {
  ThreadPool pool(1);  // nothing is computed
  return make_model(shape, options, pool)->activations();
}

}  // namespace aliquot
