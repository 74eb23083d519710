#pragma once
// Lower bound for the time of an optimizer step: reads and writes its memory streams once, with one multiply-add per
// element.

#include <cstdint>

namespace aliquot {

/// The memory streams of a step. The bf16 gradient is read. The fp32 and byte streams are read and written. Then either
/// the bf16 copy is written, or the two 16-bit halves of a split master are read and written, or neither.
struct FloorStreams {
  const uint16_t* gradient = nullptr;
  float* fp32[3] = {};
  int fp32_count = 0;
  uint8_t* bytes[2] = {};    // both null, or both set with fp32_count 1 and a copy
  uint16_t* copy = nullptr;  // null if there is no copy; exclusive with `high` and `low`
  uint16_t* high = nullptr;  // null unless the master is split; set together with `low`
  int16_t* low = nullptr;
};

/// Processes elements [begin, end) with AVX-512 if available, otherwise with a plain loop. Both are multiples of 256.
void run_floor(const FloorStreams& streams, int64_t begin, int64_t end);

}  // namespace aliquot
