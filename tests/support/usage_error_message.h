#pragma once
// Returns the message of the UsageError that a call throws.

#include <string>

#include "kernels/system/error.h"

namespace aliquot::test {

/// Returns the message of the UsageError that `call` throws, or "no error was thrown".
template <typename Call>
std::string usage_error_message(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error was thrown";
}

}  // namespace aliquot::test
