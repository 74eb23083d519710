#include "kernels/system/error.h"
#include "optim/muon/orthogonalize.h"
#include "optim/update/update_tables.h"

namespace aliquot {

namespace {
[[noreturn]] void throw_no_cuda() {
  throw UnavailableError("update: this build of Aliquot has no CUDA; configure it with -DALIQUOT_CUDA=ON");
}
}  // namespace

const UpdateKernels& cuda_update_kernels() { throw_no_cuda(); }
const MatrixKernels& cuda_matrix_kernels() { throw_no_cuda(); }

}  // namespace aliquot
