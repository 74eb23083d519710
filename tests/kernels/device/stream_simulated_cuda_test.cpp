// Tests of streams of a faulty GPU. They use the simulated GPU, because a fault of a real GPU would affect its other
// users.
#include <gtest/gtest.h>

#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot {
namespace {

TEST(FaultyGpu, HostWorkThrowsInsteadOfBlocking) {
  CudaDevice device(0);
  const auto stream = device.make_stream(Lane::kCompute);
  simulated::fault(cuda_stream(*stream));
  EXPECT_THROW(
      {
        // Enqueues more work than the stream's queue can hold.
        for (int i = 0; i < 1000; ++i) stream->run([] {});
      },
      FaultError);
  EXPECT_THROW(stream->synchronize(), FaultError);
}

}  // namespace
}  // namespace aliquot
