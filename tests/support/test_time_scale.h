#pragma once
// Time limits that depend on the build.

#include <cstdlib>

namespace aliquot::test {

/// The factor for time limits in instrumented builds, as for the time limits of ctest (ALIQUOT_TIMES_AS_LONG).
inline double test_time_scale() {
  const char* scale = std::getenv("ALIQUOT_TIMES_AS_LONG");
  return scale != nullptr ? std::atof(scale) : 1;
}

}  // namespace aliquot::test
