// Runs the conformance tests with thread ranks on a device that runs queued work as late, as early or as randomly as
// the waits allow.
#include "tests/sharding/conformance/conformance.h"
#include "tests/support/adversarial_device.h"

namespace aliquot::conformance {

std::vector<int> world_sizes() { return {2, 3, 4}; }
void run_world(int rank_count, const std::function<void(World&)>& body) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    World::threads(rank_count, body,
                   {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
  }
}
bool sums_are_exact() { return true; }

}  // namespace aliquot::conformance
