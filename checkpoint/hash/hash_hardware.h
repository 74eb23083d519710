#pragma once
// What this processor can do in instructions of its own; one source file a kind of processor, chosen by CMake.

#include <cstddef>
#include <cstdint>

namespace aliquot {

/// Advances a CRC-32C register (not inverted) over bytes.
using Crc32cUpdate = uint32_t (*)(uint32_t state, const std::byte* bytes, size_t count);
/// Advances SHA-256's eight words over blocks of 64 bytes.
using Sha256Update = void (*)(uint32_t state[8], const std::byte* blocks, size_t block_count);

/// Null where the processor, asked at run time, has no such instructions.
Crc32cUpdate crc32c_hardware();
Sha256Update sha256_hardware();

}  // namespace aliquot
