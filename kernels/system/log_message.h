#pragma once
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace aliquot {

/// Passes `message` to the sink of kernels/system/log.h, if one is set. Thread-safe.
void log_message(std::string_view message) noexcept;

/// Formats a message and passes it to the sink. Drops the message if there is no memory for it.
template <typename... Parts>
void log_message(fmt::format_string<const Parts&...> format, const Parts&... parts) noexcept
    requires(sizeof...(Parts) > 0) {
  try {
    log_message(std::string_view(fmt::format(format, parts...)));
  } catch (...) {
  }
}

}  // namespace aliquot
