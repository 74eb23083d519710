#pragma once
// Seconds by the clock that never goes back: for spans within one process, since its zero is nobody's. Any thread.

#include <chrono>

namespace aliquot {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace aliquot
