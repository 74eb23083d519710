// The optimizer of a pretended GPU: the host's, in the stream's order.
#include "kernels/device.h"
#include "kernels/device_cuda.h"
#include "optim/orthogonalize.h"
#include "optim/update.h"
#include "optim/update_tables.h"
#include "tests/support/pretended_cuda.h"

namespace aliquot {
namespace {

void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  pretended::launch(cuda_stream(stream), [args, step] {
    const auto host = make_host_device(1);
    const auto own = host->make_stream(Lane::kCompute);
    update_kernels(DeviceKind::kHost).update(*own, args, step);
    own->synchronize();
  });
}

void orthogonalize(Stream& stream, const Orthogonalize& what) {
  pretended::launch(cuda_stream(stream), [what] {
    ThreadPool pool(1);
    orthogonalize_on_host(what, pool);
  });
}

}  // namespace

const MatrixKernels& cuda_matrix_kernels() {
  static constexpr MatrixKernels kKernels{orthogonalize};
  return kKernels;
}

const UpdateKernels& cuda_update_kernels() {
  static constexpr UpdateKernels kKernels{update};
  return kKernels;
}

}  // namespace aliquot
