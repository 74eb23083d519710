#pragma once
// What tests that start mpirun give it.

#include <cstdlib>
#include <string>
#include <vector>

namespace aliquot::test {

/// Variables with which mpirun starts as root, and programs of a build with the address sanitizer may leave what Open MPI does
/// not free (mpi_leaks.h says why); then `more`.
inline std::vector<std::string> mpirun_environment(const std::vector<std::string>& more = {}) {
  const char* said = std::getenv("ASAN_OPTIONS");
  std::vector<std::string> variables{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                     "ASAN_OPTIONS=" + std::string(said == nullptr ? "" : said) + ":detect_leaks=0"};
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

}  // namespace aliquot::test
