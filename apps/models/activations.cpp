#include "apps/models/activations.h"

#include "apps/models/make_model.h"

namespace aliquot {

ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, const PlannedDevice& device) {
  ThreadPool pool(1);  // required by the backend, but runs no work
  const auto loops = device.kind == DeviceKind::kHost
                         ? make_host_backend(pool, device.threads)
                         : make_planned_gpu_backend(pool, device.rounding, device.attention);
  return make_model(shape, options, *loops)->activations();
}

}  // namespace aliquot
