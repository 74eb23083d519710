#pragma once
// Copies of more data than the caches hold. CMake chooses the source file for the processor architecture.

#include <cstddef>

namespace aliquot {

/// Like memcpy(), for data that is not read again soon. On x86-64 it uses non-temporal stores, which bypass the caches
/// and avoid reading the destination. memcpy() uses them only for single large copies.
void non_temporal_copy(std::byte* to, const std::byte* from, size_t count);

}  // namespace aliquot
