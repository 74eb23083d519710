#pragma once
// Error messages of rejected calls.

#include <string>

#include "kernels/system/error.h"

namespace aliquot::test {

/// Returns the message of the UsageError that `call` throws, or "nothing was refused".
template <typename Call>
std::string usage_error_message(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace aliquot::test
