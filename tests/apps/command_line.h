#pragma once
// Runs the command as its users do.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace aliquot::test {

struct CommandResult {
  int code = -1;  // -1: it did not exit by itself
  std::string out, err;
  int64_t peak_bytes = 0;  // the most memory it was resident with
};

/// `aliquot ARGUMENTS...`, to its end.
CommandResult run_aliquot(const std::vector<std::string>& arguments);

/// mpirun is here, and the command was built for it.
bool has_mpi();

/// Where it is.
std::string aliquot_program();

/// Any program by its path; `environment` are more variables, "NAME=value".
CommandResult run_program(const std::string& path, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {});

}  // namespace aliquot::test
