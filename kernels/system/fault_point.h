#pragma once
// Fault points: places at which tests inject random faults into runs of many ranks in one process.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Faults that a seed determines. A rank passes each named point many times, and each pass fails with `probability`.
/// Whether a pass fails depends only on the seed, the rank, the name, and the number of the pass. One fault in four is
/// a delay of a few milliseconds, the others throw FaultError.
struct RandomFaults {
  uint64_t seed = 0;
  double probability = 0;
};

/// Injects faults at all fault points of this process from now on. Returns the faults that occurred since the last
/// call, such as "throw at reduce, pass 3 of rank 1". A probability of 0 ends the injection. Thread-safe.
std::vector<std::string> set_random_faults(const RandomFaults& faults);

namespace fault_points_detail {
extern std::atomic<bool> enabled;
void pass(int rank, std::string_view name);
}  // namespace fault_points_detail

/// Whether fault_point() can have an effect.
inline bool random_faults_enabled() { return fault_points_detail::enabled.load(std::memory_order_relaxed); }

/// A place where a fault can happen on `rank`. Throws FaultError or waits if the random faults say so.
inline void fault_point(int rank, std::string_view name) {
  if (random_faults_enabled()) fault_points_detail::pass(rank, name);
}

}  // namespace aliquot
