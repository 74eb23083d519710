#pragma once
// Arithmetic on CRC-32C remainders: polynomials over GF(2) modulo the Castagnoli polynomial. The bits are reversed: x^0
// is the most significant bit.

#include <array>
#include <cstdint>

namespace aliquot {

inline constexpr uint32_t kCrc32cPolynomial = 0x82f63b78u;

/// a * b modulo the polynomial.
constexpr uint32_t crc32c_multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1u) != 0 ? kCrc32cPolynomial : 0u);
  }
  return product;
}

/// x^(8 * count) modulo the polynomial. Multiplying a remainder by it appends `count` zero bytes.
constexpr uint32_t crc32c_shift(uint64_t count) {
  uint32_t power = 0x80000000u;   // the polynomial x^0
  uint32_t square = 0x00800000u;  // the polynomial x^8
  for (; count != 0; count >>= 1) {
    if ((count & 1u) != 0) power = crc32c_multiply(power, square);
    square = crc32c_multiply(square, square);
  }
  return power;
}

/// Tables that multiply a remainder by a constant: one table for each byte of the remainder.
using Crc32cTables = std::array<std::array<uint32_t, 256>, 4>;

constexpr Crc32cTables crc32c_multiply_tables(uint32_t factor) {
  Crc32cTables tables{};
  for (uint32_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      tables[byte][value] = crc32c_multiply(factor, value << (8 * byte));
    }
  }
  return tables;
}

constexpr uint32_t crc32c_multiply(const Crc32cTables& factor, uint32_t a) {
  return factor[0][a & 0xff] ^ factor[1][(a >> 8) & 0xff] ^ factor[2][(a >> 16) & 0xff] ^ factor[3][a >> 24];
}

}  // namespace aliquot
