#include "optim/update.h"

#include "optim/update_host.h"

namespace aliquot {

const UpdateKernels& update_kernels(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? cuda_update_kernels() : host_update_kernels();
}

}  // namespace aliquot
