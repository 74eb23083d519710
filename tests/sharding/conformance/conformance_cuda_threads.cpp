// Runs the conformance tests with thread ranks on the GPUs of the machine. Ranks share GPUs if there are fewer GPUs
// than ranks.
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {

std::vector<int> world_sizes() { return {1, 2, 3, 4, 8}; }
void run_world(int rank_count, const std::function<void(World&)>& body) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  World::threads(rank_count, body,
                 {.device = DeviceChoice::kCuda, .kind = WorldChoice::kThreads, .timeout_seconds = 60});
}
bool sums_are_exact() { return true; }

}  // namespace aliquot::conformance
