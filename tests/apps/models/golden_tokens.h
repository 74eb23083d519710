#pragma once
// The tokens of the comparisons with transformers and peft.

#include <cstdint>
#include <string>

namespace aliquot::test {

inline constexpr int kGoldenSteps = 20;
inline constexpr int64_t kGoldenBatch = 4, kGoldenSequence = 32;

/// Returns the same tokens as tokens() in compare_transformers.py, as 16-bit little-endian integers. The generator is
/// the example of rand() in the C standard. All tokens are below 32.
inline std::string golden_tokens() {
  uint64_t state = 12345;
  std::string bytes;
  for (int64_t i = 0; i < kGoldenSteps * kGoldenBatch * kGoldenSequence + 1; ++i) {
    state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
    bytes += static_cast<char>((state >> 16) % 32);
    bytes += '\0';  // the upper byte
  }
  return bytes;
}

}  // namespace aliquot::test
