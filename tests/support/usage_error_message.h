#pragma once
// What a refused call says.

#include <string>

#include "kernels/system/error.h"

namespace aliquot::test {

/// The sentence of the UsageError that `call` throws.
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
