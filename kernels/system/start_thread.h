#pragma once
// Threads that the system may refuse.

#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {

/// A thread that does `work`. Throws UnavailableError, naming its `purpose`, when the system gives none.
template <typename Work>
std::thread start_thread(std::string_view purpose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw UnavailableError("the system gives no thread for " + std::string(purpose) + ": " + error.code().message() +
                           "; use fewer threads or ranks, or raise the limits on processes and memory (ulimit -u, -v)");
  }
}

}  // namespace aliquot
