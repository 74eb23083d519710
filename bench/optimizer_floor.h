#pragma once
// A lower bound for the time of an optimizer step. The code reads and writes the arrays of such a step once, with one
// multiply-add per element.

#include <cstdint>

namespace aliquot {

/// The arrays that an optimizer step streams through memory. It reads the bf16 gradient, and reads and writes the fp32
/// and 8-bit arrays of optimizer state. With an fp32 master it also writes the bf16 copy. With a split master it reads
/// and writes both 16-bit halves.
struct FloorStreams {
  const uint16_t* gradient = nullptr;
  float* fp32[3] = {};
  int fp32_count = 0;
  uint8_t* bytes[2] = {};    // both null or both set; if set, fp32_count must be 1 and `copy` set
  uint16_t* copy = nullptr;  // null if there is no copy; must be null if `high` and `low` are set
  uint16_t* high = nullptr;  // null unless the master is split; set together with `low`
  int16_t* low = nullptr;
};

/// Processes elements [begin, end) with AVX-512 if available, otherwise with a plain loop. `begin` and `end`
/// must be multiples of 256.
void run_floor(const FloorStreams& streams, int64_t begin, int64_t end);

}  // namespace aliquot
