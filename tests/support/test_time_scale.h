#pragma once
// Time limits that depend on the build.

#include <cstdlib>

namespace aliquot::test {

/// Returns the factor for time limits: ALIQUOT_TIMES_AS_LONG, which CMake sets for instrumented builds, or 1.
inline double test_time_scale() {
  const char* scale = std::getenv("ALIQUOT_TIMES_AS_LONG");
  return scale != nullptr ? std::atof(scale) : 1;
}

}  // namespace aliquot::test
