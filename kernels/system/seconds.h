#pragma once
// Seconds of the monotonic clock, for intervals within one process: the zero point is unspecified. Thread-safe.

#include <chrono>

namespace aliquot {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace aliquot
