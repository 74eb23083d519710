#pragma once
// Every error a user can meet is one of these: one sentence that says what, where and what to do, and the exit code it ends with.

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)
namespace aliquot {

enum class ExitCode : int {
  kDone = 0,
  kUsage = 1,        // a flag, a file or a call is wrong
  kUnavailable = 2,  // cannot be done here: no such device, does not fit
  kFault = 3,        // a rank died, a collective timed out, a call of the system failed
  kNotFinite = 4,
  kCheckpoint = 5,
  kStopped = 75,  // asked to stop, saved, start again
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, const std::string& sentence) : std::runtime_error(sentence), exit_code_(exit_code) {}
  ExitCode exit_code() const noexcept { return exit_code_; }

 private:
  ExitCode exit_code_;
};

class UsageError : public Error {
 public:
  explicit UsageError(const std::string& sentence) : Error(ExitCode::kUsage, sentence) {}
};

class UnavailableError : public Error {
 public:
  explicit UnavailableError(const std::string& sentence) : Error(ExitCode::kUnavailable, sentence) {}
};

class NotFiniteError : public Error {
 public:
  explicit NotFiniteError(const std::string& sentence) : Error(ExitCode::kNotFinite, sentence) {}
};

class FaultError : public Error {
 public:
  explicit FaultError(const std::string& sentence) : Error(ExitCode::kFault, sentence) {}
};

}  // namespace aliquot
#pragma GCC visibility pop
