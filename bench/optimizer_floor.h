#pragma once
// The least a step can cost: its streams, read and written once, with a multiply-add each and nothing else.

#include <cstdint>

namespace aliquot {

/// A bf16 gradient is read; `fp32_count` fp32 streams, and two of bytes if there are any, are read and written; and either a bf16 copy is written, or the
/// A bf16 gradient is read; `fp32_count` fp32 streams, and two of bytes if there are any, are read and written; and a bf16
/// copy is written, or the master is split and its two 16-bit halves are read and written, or neither.
struct FloorStreams {
  const uint16_t* gradient = nullptr;
  float* fp32[3] = {};
  int fp32_count = 0;
  uint8_t* bytes[2] = {};    // both or none; with one fp32 stream and a copy
  uint16_t* copy = nullptr;  // or none, and either both or neither of:
  uint16_t* high = nullptr;
  int16_t* low = nullptr;
};

/// Elements [begin, end), multiples of 256, with the widest instructions this processor has.
void run_floor(const FloorStreams& streams, int64_t begin, int64_t end);

}  // namespace aliquot
