#pragma once
// SHA-256, for digests of parameters and for the hash in the manifest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace aliquot {

/// Incremental SHA-256. kFastest uses the SHA instructions of the processor if it has them, which is detected at run
/// time.
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;
  enum class Implementation { kFastest, kPortable };

  explicit Sha256(Implementation implementation = Implementation::kFastest);

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// Returns the digest of all bytes. Must be called only once, and update() must not be called afterwards.
  Digest finish();

 private:
  using Update = void (*)(uint32_t state[8], const std::byte* blocks, size_t block_count);

  Update update_blocks_;
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

/// Returns the digest as 64 lower-case hexadecimal digits.
std::string hex(const Sha256::Digest& digest);
std::string sha256_hex(std::string_view text);

}  // namespace aliquot
