// Runs the conformance tests with ranks on simulated GPUs. This tests the host code of GPU ranks on a machine without a
// GPU.
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {

std::vector<int> world_sizes() { return {1, 3, 4}; }
void run_world(int rank_count, const std::function<void(World&)>& body) {
  World::threads(rank_count, body,
                 {.device = DeviceChoice::kCuda, .kind = WorldChoice::SIMULATED_WORLD, .timeout_seconds = 60});
}
bool sums_are_exact() { return WorldChoice::SIMULATED_WORLD == WorldChoice::kThreads; }

}  // namespace aliquot::conformance
