// Substitutes for the GPU communicators in a build without CUDA. They throw UnavailableError.

#include "sharding/comm/direct_communicator.h"
#include "sharding/nccl/communicator_nccl.h"

namespace aliquot {
namespace {

constexpr const char* kNoCudaMessage =
    "this build of aliquot has no CUDA support: use a host device, or install the CUDA toolkit and NCCL and rebuild "
    "with -DALIQUOT_CUDA=ON";

}  // namespace

DirectTransport cuda_direct_transport(double) { throw UnavailableError(kNoCudaMessage); }

std::unique_ptr<Communicator> make_nccl_communicator(Device&, NcclSetup) { throw UnavailableError(kNoCudaMessage); }

}  // namespace aliquot
