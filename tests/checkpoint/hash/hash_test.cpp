#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/hash/crc32c.h"
#include "checkpoint/hash/sha256.h"

namespace aliquot {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, KnownVectors) {  // the vectors of RFC 3720, section B.4
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  for (auto* crc : {+[](const std::string& text) { return crc32c(bytes_of(text)); },
                    +[](const std::string& text) { return crc32c_portable(bytes_of(text)); }}) {
    EXPECT_EQ(crc(""), 0u);
    EXPECT_EQ(crc("123456789"), 0xe3069283u);
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
    EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
    EXPECT_EQ(crc(rising), 0x46dd794eu);
    EXPECT_EQ(crc(falling), 0x113fdb5cu);
  }
}

TEST(Crc32c, HardwareEqualsPortableAtEveryLengthAndAlignment) {
  const auto bytes = random_bytes(70'000);
  for (size_t count : {0, 1, 7, 8, 9, 63, 4095, 4096, 12287, 12288, 12289, 24576, 36863, 65537}) {
    for (size_t offset : {0, 1, 3, 8, 4095}) {
      const auto part = std::span(bytes).subspan(offset, count);
      EXPECT_EQ(crc32c(part), crc32c_portable(part)) << count << " at " << offset;
    }
  }
}

TEST(Crc32c, ContinuesAndCombines) {
  const auto bytes = random_bytes(50'000);
  const uint32_t expected = crc32c(bytes);
  for (size_t cut : {0, 1, 255, 4096, 12288, 49'999, 50'000}) {
    const auto first = std::span(bytes).first(cut), rest = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32c(rest, crc32c(first)), expected);
    EXPECT_EQ(crc32c_portable(rest, crc32c_portable(first)), expected);
    EXPECT_EQ(crc32c_combine(crc32c(first), crc32c(rest), static_cast<int64_t>(rest.size())), expected);
  }
}

TEST(Sha256, KnownVectors) {  // the examples of FIPS 180-4
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HardwareEqualsPortableForAnySplitOfTheInput) {
  for (size_t count : {0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 1000, 65'537}) {
    const auto bytes = random_bytes(count);
    Sha256 portable(Sha256::Implementation::kPortable), at_once, pieces;
    portable.update(bytes);
    at_once.update(bytes);
    for (size_t at = 0; at < count; at += 37)
      pieces.update(std::span(bytes).subspan(at, std::min<size_t>(37, count - at)));
    const auto expected = portable.finish();
    EXPECT_EQ(at_once.finish(), expected) << count;
    EXPECT_EQ(pieces.finish(), expected) << count;
  }
}

}  // namespace
}  // namespace aliquot
