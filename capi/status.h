#pragma once
// Between exceptions and statuses.

#include <aliquot/c.h>
#include <functional>
#include <string>

#include "kernels/system/error.h"

namespace aliquot::capi {

/// Keeps the exception that is being handled as this thread's message, and returns its status.
int caught() noexcept;

/// Runs `body`; no exception leaves.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    body();
    return ALIQUOT_DONE;
  } catch (...) {
    return caught();
  }
}

/// The message of this thread.
const std::string& message();

/// Throws UsageError for a null that a call cannot do without.
template <typename T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw UsageError(std::string(what) + " is null");
  return *pointer;
}

/// Throws what a callback's status says, with this thread's message if it is that of the call which failed.
void require_done(int status, const std::string& who);

}  // namespace aliquot::capi
