#pragma once
// Numbers of bytes as people read them.

#include <cstdint>
#include <string>

namespace aliquot {

/// "512 B", "1.50 KiB", "183 MiB", "12.4 GiB": three figures.
std::string format_bytes(int64_t bytes);

}  // namespace aliquot
