#pragma once
// The error of a checkpoint that is missing, damaged or of another model.
#include <string>

#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Thrown for a checkpoint that is missing, corrupt or inconsistent.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message) : Error(ExitCode::kCheckpoint, message) {}
};

}  // namespace aliquot
#pragma GCC visibility pop
