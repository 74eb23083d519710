#pragma once
// Measures the CPU time of a function, which does not depend on other load on the machine.

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>
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

/// Measures the CPU time of `body`, divided by the slowness of the processor. Compare the result with a limit: an older
/// processor, or one that other programs slow down, does not exceed it. Other programs can slow down the body more than
/// the fixed computation, for example if they occupy the caches. So this is the fastest of three runs. A run below
/// `limit_seconds` is the last one.
template <typename Body>
double reference_cpu_seconds(double limit_seconds, Body body) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 3 && fastest >= limit_seconds; ++run) {
    const double before = processor_slowness();
    const double seconds = cpu_seconds(body);
    fastest = std::min(fastest, seconds / ((before + processor_slowness()) / 2));
  }
  return fastest;
}

}  // namespace aliquot::test
