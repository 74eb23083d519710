#include "apps/models/activations.h"

#include "apps/models/make_model.h"

namespace aliquot {

ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, DeviceKind device, int threads,
                              OperandRounding rounding) {
  ThreadPool pool(1);  // required by the backend, but runs no work
  const auto loops =
      device == DeviceKind::kHost ? make_host_backend(pool, threads) : make_planned_gpu_backend(pool, rounding);
  return make_model(shape, options, *loops)->activations();
}

}  // namespace aliquot
