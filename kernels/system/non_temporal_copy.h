#pragma once
// Copying more than the caches hold; one source file a kind of processor, chosen by CMake.

#include <cstddef>

namespace aliquot {

/// memcpy of plain memory that will not be read again soon: where the processor can, it is written past the caches, which
/// saves reading what is overwritten. memcpy itself does so for single large pieces alone.
void non_temporal_copy(std::byte* to, const std::byte* from, size_t count);

}  // namespace aliquot
