#pragma once
// Which build this is.

#include <string_view>

namespace aliquot {

/// The project's version: "0.1.0".
std::string_view version();

}  // namespace aliquot
