#include "kernels/system/error.h"
#include "optim/muon/orthogonalize.h"
#include "optim/update/update_tables.h"

namespace aliquot {

namespace {
[[noreturn]] void refuse() {
  throw UnavailableError("update: this build of Aliquot has no CUDA; configure it with -DALIQUOT_CUDA=ON");
}
}  // namespace

const UpdateKernels& cuda_update_kernels() { refuse(); }
const MatrixKernels& cuda_matrix_kernels() { refuse(); }

}  // namespace aliquot
