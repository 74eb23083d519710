#pragma once
// Saying something to whoever listens.

#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace aliquot {

/// Hands the sentence to the sink of kernels/system/log.h, if there is one. Any thread.
void tell(std::string_view sentence) noexcept;

/// The same of a sentence to be made; what cannot be made for want of memory is not said.
template <typename... Parts>
void tell(fmt::format_string<const Parts&...> format, const Parts&... parts) noexcept requires(sizeof...(Parts) > 0) {
  try {
    tell(std::string_view(fmt::format(format, parts...)));
  } catch (...) {
  }
}

}  // namespace aliquot
