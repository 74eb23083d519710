#pragma once
// Hash functions that use special processor instructions. CMake chooses one source file for each processor
// architecture.

#include <cstddef>
#include <cstdint>

namespace aliquot {

/// Updates a CRC-32C register over bytes. Neither the argument nor the result is inverted.
using Crc32cUpdate = uint32_t (*)(uint32_t state, const std::byte* bytes, size_t count);
/// Updates the eight state words of SHA-256 over blocks of 64 bytes.
using Sha256Update = void (*)(uint32_t state[8], const std::byte* blocks, size_t block_count);

/// Return the implementation for this processor, or null if the processor lacks the instructions, which is detected at
/// run time.
Crc32cUpdate crc32c_hardware();
Sha256Update sha256_hardware();

}  // namespace aliquot
