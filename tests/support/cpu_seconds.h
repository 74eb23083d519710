#pragma once
// What a body of one thread costs, whatever else the machine does meanwhile.

#include <ctime>

namespace aliquot::test {

/// The calling thread's own processor time.
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
