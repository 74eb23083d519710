#pragma once
// Exceptions for errors that are reported to the user. The message is one sentence: what failed, where, and what to do.
// exit_code() is the exit code of a command that ends with the error.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// The namespace keeps the enumerators out of namespace aliquot. They are named ExitCode::kFault.
namespace exit_codes {
/// Converts to int, so that main() can return it.
enum ExitCode : int {
  kDone = 0,
  kUsage = 1,        // invalid flag, file or call
  kUnavailable = 2,  // not possible on this machine: missing device, too little memory
  kFault = 3,        // a rank died, a collective timed out, or a system call failed
  kNotFinite = 4,
  kCheckpoint = 5,
  kStopped = 75,  // stopped on request after saving; can be restarted
};
}  // namespace exit_codes
using exit_codes::ExitCode;

class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  /// The exit code that a program should use: `return error.exit_code();` in main().
  ExitCode exit_code() const noexcept { return exit_code_; }

 private:
  ExitCode exit_code_;
};

class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};

class UnavailableError : public Error {
 public:
  explicit UnavailableError(const std::string& message) : Error(ExitCode::kUnavailable, message) {}
};

class NotFiniteError : public Error {
 public:
  explicit NotFiniteError(const std::string& message) : Error(ExitCode::kNotFinite, message) {}
};

class FaultError : public Error {
 public:
  explicit FaultError(const std::string& message) : Error(ExitCode::kFault, message) {}

 protected:
  FaultError(ExitCode exit_code, const std::string& message) : Error(exit_code, message) {}
};

/// Thrown on all ranks if a replay gives other gradients, or a repeated sum over ranks differs
/// (EngineOptions::replay_every).
class ReplayError : public FaultError {
 public:
  struct Finding {
    std::vector<int> ranks = {};          // the ranks that may have computed wrong results, ascending
    std::vector<int> nodes = {};          // their nodes, ascending
    std::vector<std::string> hosts = {};  // the names of the hosts of `ranks`, without repetition
    bool is_decided = false;              // whether other ranks agree that one of `ranks` is at fault
    std::string unit = {};                // the unit of the first difference; empty: only the loss differs
    int64_t block = -1;                   // the first block of its flat buffer that differs
  };
  ReplayError(const std::string& message, Finding finding) : FaultError(message), finding_(std::move(finding)) {}
  const Finding& finding() const noexcept { return finding_; }

 private:
  Finding finding_;
};

}  // namespace aliquot
#pragma GCC visibility pop
