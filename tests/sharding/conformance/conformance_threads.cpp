#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {

std::vector<int> world_sizes() { return {1, 2, 3, 4, 8}; }
void run_world(int rank_count, const std::function<void(World&)>& body) {
  World::threads(rank_count, body, {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}
bool sums_are_exact() { return true; }

}  // namespace aliquot::conformance
