#pragma once
// The time that a program may take, by how it is built.

#include <cstdlib>

namespace aliquot::test {

/// How many times as long as it would without instruments: as its time limit in the suite.
inline double test_time_scale() {
  const char* said = std::getenv("ALIQUOT_TIMES_AS_LONG");
  return said != nullptr ? std::atof(said) : 1;
}

}  // namespace aliquot::test
