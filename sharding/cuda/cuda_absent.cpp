// Ranks on GPUs in a build without CUDA: why there are none is said.

#include "sharding/comm/direct_communicator.h"
#include "sharding/nccl/communicator_nccl.h"

namespace aliquot {
namespace {

constexpr const char* kNoCudaMessage =
    "this build of aliquot has no GPU parts, so no ranks on GPUs; install the CUDA toolkit and NCCL, configure again "
    "with "
    "-DALIQUOT_CUDA=ON and rebuild, or run with --device host";

}  // namespace

DirectTransport cuda_direct_transport(double) { throw UnavailableError(kNoCudaMessage); }

std::unique_ptr<Communicator> make_nccl_communicator(Device&, NcclSetup) { throw UnavailableError(kNoCudaMessage); }

}  // namespace aliquot
