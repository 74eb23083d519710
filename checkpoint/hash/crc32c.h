#pragma once
// CRC-32C (Castagnoli), the checksum of the tiles of a checkpoint.

#include <cstddef>
#include <cstdint>
#include <span>

namespace aliquot {

/// Continues the CRC-32C `before` over `bytes`. If `before` is 0, starts a new CRC. Uses the processor's CRC
/// instruction if it has one, which is detected at run time.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

/// The reference implementation of crc32c(). Uses tables instead of special instructions.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

/// Returns the CRC-32C of the concatenation of two ranges, from their CRCs `a` and `b` and the length of the second.
uint32_t crc32c_combine(uint32_t a, uint32_t b, int64_t b_bytes);

}  // namespace aliquot
