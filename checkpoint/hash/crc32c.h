#pragma once
// CRC-32C (Castagnoli), the checksum of a checkpoint's tiles.

#include <cstddef>
#include <cstdint>
#include <span>

namespace aliquot {

/// The CRC-32C of what gave `before` followed by `bytes`; with no `before`, of `bytes` alone. The processor's own
/// instruction where it has one, chosen at run time.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

/// The same from tables, on any processor: the reference.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

/// The CRC-32C of A followed by B, from those of A and of B and B's length.
uint32_t crc32c_combine(uint32_t a, uint32_t b, int64_t b_bytes);

}  // namespace aliquot
