#include "kernels/error.h"
#include "optim/update_tables.h"

namespace aliquot {

const UpdateKernels& cuda_update_kernels() {
  throw UnavailableError("update: this build of Aliquot has no CUDA; configure it with -DALIQUOT_CUDA=ON");
}

}  // namespace aliquot
