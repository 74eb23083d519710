#pragma once
// Environment variables with which tests start mpirun.

#include <string>
#include <vector>

namespace aliquot::test {

/// Returns variables that allow mpirun to run as root, followed by `more`.
inline std::vector<std::string> mpirun_environment(const std::vector<std::string>& more = {}) {
  std::vector<std::string> variables{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

}  // namespace aliquot::test
