#pragma once
// The error of a checkpoint that cannot be used.

#include <string>

#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A checkpoint that is absent, damaged or not what it claims to be.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& sentence) : Error(ExitCode::kCheckpoint, sentence) {}
};

}  // namespace aliquot
#pragma GCC visibility pop
