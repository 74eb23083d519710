#include "checkpoint/hash/crc32c.h"

#include <array>

#include "checkpoint/hash/crc32c_polynomial.h"
#include "checkpoint/hash/hash_hardware.h"

namespace aliquot {
namespace {

// Slicing-by-8 tables: kSlices[k][b] is the contribution of byte b to the register if k more bytes follow it in the
// same step of eight bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_slices() {
  std::array<std::array<uint32_t, 256>, 8> slices{};
  const uint32_t shift = crc32c_shift(1);
  for (uint32_t byte = 0; byte < 256; ++byte) slices[0][byte] = crc32c_multiply(shift, byte);
  // Each table is derived from the previous one. This keeps the constant evaluation within the step limits of all
  // compilers.
  for (uint32_t k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = slices[k - 1][byte];
      slices[k][byte] = (before >> 8) ^ slices[0][before & 0xff];
    }
  }
  return slices;
}
constexpr auto kSlices = make_slices();

uint32_t update_portable(uint32_t state, const std::byte* bytes, size_t count) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  for (; count >= 8; bytes += 8, count -= 8) {
    state = kSlices[7][(state ^ at(0)) & 0xff] ^ kSlices[6][((state >> 8) ^ at(1)) & 0xff] ^
            kSlices[5][((state >> 16) ^ at(2)) & 0xff] ^ kSlices[4][(state >> 24) ^ at(3)] ^ kSlices[3][at(4)] ^
            kSlices[2][at(5)] ^ kSlices[1][at(6)] ^ kSlices[0][at(7)];
  }
  for (; count > 0; ++bytes, --count) state = (state >> 8) ^ kSlices[0][(state ^ at(0)) & 0xff];
  return state;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const Crc32cUpdate hardware = crc32c_hardware();
  if (hardware == nullptr) return crc32c_portable(bytes, before);
  return ~hardware(~before, bytes.data(), bytes.size());
}

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  return ~update_portable(~before, bytes.data(), bytes.size());
}

uint32_t crc32c_combine(uint32_t a, uint32_t b, int64_t b_bytes) {
  return crc32c_multiply(crc32c_shift(static_cast<uint64_t>(b_bytes)), a) ^ b;
}

}  // namespace aliquot
