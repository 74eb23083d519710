#pragma once
// Measures the CPU time of a function, which does not depend on other load on the machine.

#include <ctime>

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

}  // namespace aliquot::test
