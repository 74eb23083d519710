#pragma once
// What a body of one thread costs, whatever else the machine does meanwhile.

#include <cstdlib>
#include <ctime>

namespace aliquot::test {

/// How many times as long a program may take as it would without instruments: as its time limit in the suite.
inline double times_as_long() {
  const char* said = std::getenv("ALIQUOT_TIMES_AS_LONG");
  return said != nullptr ? std::atof(said) : 1;
}

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
