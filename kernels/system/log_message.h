#pragma once
// Saying something to whoever listens.

#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace aliquot {

/// Hands the sentence to the sink of kernels/system/log.h, if there is one. Any thread.
void log_message(std::string_view sentence) noexcept;

/// The same of a sentence to be made; what cannot be made for want of memory is not said.
template <typename... Parts>
void log_message(fmt::format_string<const Parts&...> format, const Parts&... parts) noexcept
    requires(sizeof...(Parts) > 0) {
  try {
    log_message(std::string_view(fmt::format(format, parts...)));
  } catch (...) {
  }
}

}  // namespace aliquot
