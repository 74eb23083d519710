#pragma once
// Floats kept as eight-bit codes with one scale for each block of kBlockElements.

#include <cstdint>
#include <span>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// How a block's floats become codes and what codes mean, for those who move state and know no optimizer. Stateless: any
/// thread may call. A span is one block, or what a tensor's last block has; codes and floats are as many.
class BlockCode {
 public:
  BlockCode() = default;
  BlockCode(const BlockCode&) = delete;
  BlockCode& operator=(const BlockCode&) = delete;
  virtual ~BlockCode() = default;

  virtual float scale_of(std::span<const float> values) const = 0;
  /// To the nearest.
  virtual void encode(std::span<const float> values, float scale, uint8_t* codes) const = 0;
  virtual void decode(std::span<const uint8_t> codes, float scale, float* values) const = 0;
};

}  // namespace aliquot
