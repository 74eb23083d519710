#pragma once
// Conversion between C++ exceptions and C statuses.

#include <aliquot/c.h>
#include <functional>
#include <string>

#include "kernels/system/error.h"

namespace aliquot::capi {

/// Stores the message of the exception that is being handled, so that aliquot_message() returns it. Returns the status
/// of the exception. Call only in a catch block.
int store_current_exception() noexcept;

/// Runs `body`. Returns ALIQUOT_DONE, or the status of the exception that `body` throws.
template <typename Body>
int catch_as_status(Body body) noexcept {
  try {
    body();
    return ALIQUOT_DONE;
  } catch (...) {
    return store_current_exception();
  }
}

/// Returns the message that store_current_exception() last stored on this thread.
const std::string& last_message();

/// Throws UsageError if `pointer`, the argument `name` of a C function, is null.
template <typename T>
T& require_not_null(T* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(std::string("the argument ") + name + " must not be null");
  return *pointer;
}

/// Throws an Error with `status`, unless it is ALIQUOT_DONE. If the callback returned the status of a failed call of
/// this thread, the error has the message of that call.
void check_callback_status(int status, const std::string& callback_name);

}  // namespace aliquot::capi
