#pragma once
#include <cstdint>
#include <string>

namespace aliquot {

/// Formats a number of bytes with three significant digits: "512 B", "1.50 KiB", "183 MiB", "12.4 GiB".
std::string format_bytes(int64_t bytes);

}  // namespace aliquot
