#pragma once
// Names --init in errors of weight files.

#include <string>

#include "kernels/system/error.h"

namespace aliquot {

/// Returns call(). Adds "--init: " before the message of a UsageError.
template <typename Call>
auto with_init_name(Call&& call) {
  try {
    return call();
  } catch (const UsageError& error) {
    throw UsageError(std::string("--init: ") + error.what());
  }
}

}  // namespace aliquot
