#include "kernels/system/error.h"
#include "optim/muon/orthogonalize.h"
#include "optim/update/update_tables.h"

namespace aliquot {

namespace {
[[noreturn]] void throw_no_cuda() {
  throw UnavailableError(
      "this build of aliquot has no CUDA support: use a host device, or rebuild with -DALIQUOT_CUDA=ON");
}
}  // namespace

const UpdateKernels& cuda_update_kernels() { throw_no_cuda(); }
std::unique_ptr<Orthogonalizer> make_cuda_orthogonalizer(Device&, DType) { throw_no_cuda(); }

}  // namespace aliquot
