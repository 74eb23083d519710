#pragma once
// Floats stored as 8-bit codes with one scale for each block of kBlockElements.

#include <cstdint>
#include <span>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// Converts the floats of a block to codes and back. Code that saves and loads state uses this interface, so it does
/// not depend on an optimizer. Stateless and thread-safe. A span is one block, or the shorter last block of a tensor.
/// There is one code for each float.
class BlockCode {
 public:
  BlockCode() = default;
  BlockCode(const BlockCode&) = delete;
  BlockCode& operator=(const BlockCode&) = delete;
  virtual ~BlockCode() = default;

  virtual float scale_of(std::span<const float> values) const = 0;
  /// Encodes each value as the nearest code.
  virtual void encode(std::span<const float> values, float scale, uint8_t* codes) const = 0;
  virtual void decode(std::span<const uint8_t> codes, float scale, float* values) const = 0;
};

}  // namespace aliquot
