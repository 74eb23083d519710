#pragma once
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {

/// Starts a thread that runs `work`. Throws UnavailableError, with `purpose` in its message, if that is not possible.
template <typename Work>
std::thread start_thread(std::string_view purpose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw UnavailableError("cannot start a thread for " + std::string(purpose) + ": " + error.code().message() +
                           "; use fewer threads or ranks, or raise the limits on processes and memory (ulimit -u, -v)");
  }
}

}  // namespace aliquot
