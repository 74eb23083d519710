#pragma once
// Measures the CPU time of a function, which does not depend on other load on the machine.

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <map>
#include <random>
#include <vector>

namespace aliquot::test {

/// Returns the CPU time of the calling thread while it runs `body`.
template <typename Body>
double cpu_seconds(Body body) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  body();
  return now() - begin;
}

/// Returns how much slower this processor now runs a fixed computation than an idle Intel Xeon (Sapphire Rapids) does.
/// Returns 1 if it is not slower. Like the planner, the computation allocates memory, follows pointers and sorts.
inline double processor_slowness() {
  constexpr double kIdleSeconds = 0.015;
  volatile uint64_t result = 0;
  const double seconds = cpu_seconds([&] {
    std::mt19937_64 random(1);
    std::map<uint64_t, std::vector<uint64_t>> lists;
    for (int i = 0; i < 40'000; ++i) lists[random() % 10'000].push_back(random());
    for (auto& [key, list] : lists) {
      std::ranges::sort(list);
      result = result + list.front();
    }
  });
  return std::max(1.0, seconds / kIdleSeconds);
}

/// Returns cpu_seconds() of `body`, divided by the slowness of the processor. Compare it with limits in seconds: a
/// processor that other programs slow down, or an older one, does not exceed them.
template <typename Body>
double reference_cpu_seconds(Body body) {
  const double before = processor_slowness();
  const double seconds = cpu_seconds(body);
  return seconds / ((before + processor_slowness()) / 2);
}

}  // namespace aliquot::test
