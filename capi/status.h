#pragma once
// Between exceptions and statuses.

#include <aliquot/c.h>
#include <functional>
#include <string>

#include "kernels/system/error.h"

namespace aliquot::capi {

/// Keeps the exception that is being handled as this thread's message, and returns its status.
int store_current_exception() noexcept;

/// Runs `body`; no exception leaves.
template <typename Body>
int catch_as_status(Body body) noexcept {
  try {
    body();
    return ALIQUOT_DONE;
  } catch (...) {
    return store_current_exception();
  }
}

/// The message of this thread.
const std::string& last_message();

/// Throws UsageError for a null that a call cannot do without.
template <typename T>
T& require_not_null(T* pointer, const char* what) {
  if (pointer == nullptr) throw UsageError(std::string(what) + " is null");
  return *pointer;
}

/// Throws what a callback's status says, with this thread's message if it is that of the call which failed.
void check_callback_status(int status, const std::string& callback_name);

}  // namespace aliquot::capi
