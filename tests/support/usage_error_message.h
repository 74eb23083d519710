#pragma once
// The message of a refused call.

#include <string>

#include "kernels/system/error.h"

namespace aliquot::test {

/// The message of the UsageError that `call` throws, or "nothing was refused".
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
