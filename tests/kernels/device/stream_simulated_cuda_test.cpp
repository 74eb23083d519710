// Streams of a GPU that faults, which no test can make a real one do without harm to its other users.
#include <gtest/gtest.h>

#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot {
namespace {

TEST(FaultyGpu, HostWorkThatWillNeverStartHoldsNobody) {
  CudaDevice device(0);
  const auto stream = device.make_stream(Lane::kCompute);
  simulated::fault(cuda_stream(*stream));
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) stream->run([] {});  // more than are kept at once
      },
      FaultError);
  EXPECT_THROW(stream->synchronize(), FaultError);
}

}  // namespace
}  // namespace aliquot
