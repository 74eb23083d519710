#include "checkpoint/hash/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "checkpoint/hash/hash_hardware.h"
#include "checkpoint/hash/sha256_rounds.h"

namespace aliquot {
namespace {

uint32_t big_endian(const std::byte* at) {
  return static_cast<uint32_t>(at[0]) << 24 | static_cast<uint32_t>(at[1]) << 16 | static_cast<uint32_t>(at[2]) << 8 |
         static_cast<uint32_t>(at[3]);
}

std::array<uint32_t, 64> schedule(const std::byte* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  return w;
}

void blocks_portable(uint32_t state[8], const std::byte* blocks, size_t block_count) {
  for (; block_count > 0; --block_count, blocks += 64) {
    const std::array<uint32_t, 64> w = schedule(blocks);
    auto [a, b, c, d, e, f, g, h] =
        std::array{state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7]};
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Round[i] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t add[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += add[i];
  }
}

}  // namespace

Sha256::Sha256(Implementation implementation)
    : update_blocks_(blocks_portable), state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {
  static const Sha256Update hardware = sha256_hardware();
  if (implementation == Implementation::kFastest && hardware != nullptr) update_blocks_ = hardware;
}

void Sha256::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const size_t held = total_bytes_ % 64;
  total_bytes_ += bytes.size();
  if (held != 0) {
    const size_t part = std::min(bytes.size(), 64 - held);
    std::memcpy(pending_.data() + held, bytes.data(), part);
    if (held + part < 64) return;
    update_blocks_(state_.data(), pending_.data(), 1);
    bytes = bytes.subspan(part);
  }
  update_blocks_(state_.data(), bytes.data(), bytes.size() / 64);
  const auto rest = bytes.last(bytes.size() % 64);
  if (!rest.empty()) std::memcpy(pending_.data(), rest.data(), rest.size());
}

Sha256::Digest Sha256::finish() {
  const uint64_t total_bits = total_bytes_ * 8;
  std::array<std::byte, 72> tail{std::byte{0x80}};
  const size_t zeros_end = (119 - total_bytes_ % 64) % 64 + 1;  // leaves eight bytes for the length in the last block
  for (size_t i = 0; i < 8; ++i) tail[zeros_end + i] = static_cast<std::byte>(total_bits >> (56 - 8 * i));
  update(std::span<const std::byte>(tail).first(zeros_end + 8));
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string hex(const Sha256::Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte byte : digest) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15u];
  }
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hex(hash.finish());
}

}  // namespace aliquot
