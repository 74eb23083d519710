#pragma once
// Runs the `aliquot` command as a child process.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace aliquot::test {

struct CommandResult {
  int code = -1;  // exit code, or -1 if a signal ended the process
  std::string out, err;
  int64_t peak_bytes = 0;  // maximum resident set size
};

/// Runs `aliquot ARGUMENTS...` and waits until it exits.
CommandResult run_aliquot(const std::vector<std::string>& arguments);

/// Returns true if mpirun is found on PATH and the command was built with MPI.
bool has_mpi();

/// Returns the path of the `aliquot` program.
std::string aliquot_program();

/// Runs the program at `path` and waits until it exits. `environment` has additional variables as "NAME=value".
/// Throws std::runtime_error if the program cannot be started.
CommandResult run_program(const std::string& path, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {});

/// Runs a program on a terminal with `columns` columns. `out` has what the program writes to the terminal. Throws
/// std::runtime_error if there is no terminal.
CommandResult run_on_terminal(const std::string& path, const std::vector<std::string>& arguments, int columns,
                              const std::vector<std::string>& environment = {});

/// Runs `aliquot ARGUMENTS` under mpirun with `ranks` ranks, which may exceed the number of cores.
CommandResult run_aliquot_under_mpirun(int ranks, const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment = {});

}  // namespace aliquot::test
