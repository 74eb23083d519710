#pragma once
// Moments as 8-bit codes with one scale for each block. Part of update_loop.h.

#include "optim/update/dynamic_code.h"
#include "optim/update/update_streams.h"

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

/// Decodes any number of elements. Full blocks use Blocks::decode() instead, which is faster.
template <typename Code>
ALIQUOT_HOST_INLINE void decode_partial(float* values, const uint8_t* codes, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = Code::value(codes[i]) * scale;
}

template <typename Code>
ALIQUOT_HOST_INLINE void encode_partial(uint8_t* codes, const float* values, const float* rises, float inverse,
                                        int64_t count) {
  for (int64_t i = 0; i < count; ++i) codes[i] = Code::of(values[i] * inverse, rises[i]);
}

ALIQUOT_HOST_INLINE float scale_of_block(const float* values, int64_t count) {
  uint32_t greatest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    greatest = bits > greatest ? bits : greatest;
  }
  return scale_of(greatest);
}

/// One moment of a run, and the decoded values of the current block.
template <typename Code, typename Blocks>
struct QuantisedMoment {
  uint8_t* codes;
  float* scales;
  alignas(64) float values[kBlockElements];

  ALIQUOT_HOST_INLINE void decode(int64_t block, int64_t count) {
    const float scale = scales[block / kBlockElements];
    if (count == kBlockElements) {
      Blocks::template decode<Code>(values, codes + block, scale);
    } else {
      decode_partial<Code>(values, codes + block, scale, count);
    }
  }
  ALIQUOT_HOST_INLINE void encode(int64_t block, int64_t count, const float* rises) {
    const bool is_whole = count == kBlockElements;
    const float scale = is_whole ? scale_of_block(values, kBlockElements) : scale_of_block(values, count);
    scales[block / kBlockElements] = scale;
    if (is_whole) {
      Blocks::template encode<Code>(codes + block, values, rises, inverse_of(scale));
    } else {
      encode_partial<Code>(codes + block, values, rises, inverse_of(scale), count);
    }
  }
};

/// The moments of Adam. The first has the signed code; the second is never negative and has the unsigned code.
template <typename Blocks>
struct QuantisedStates {
  QuantisedMoment<SignedCode, Blocks> first;
  QuantisedMoment<UnsignedCode, Blocks> second;
  RandomKey key;
  int64_t global_offset;
  bool stochastic;
  alignas(64) float rises[2][kBlockElements];

  // cppcheck-suppress uninitMemberVar ; the constructor sets `rises`, the amounts that rounding adds
  explicit QuantisedStates(const UpdateRun& run)
      : key(run.key), global_offset(run.global_offset), stochastic(run.rounding == Rounding::kStochastic) {
    first.codes = static_cast<uint8_t*>(run.states[0]), first.scales = static_cast<float*>(run.states[1]);
    second.codes = static_cast<uint8_t*>(run.states[2]), second.scales = static_cast<float*>(run.states[3]);
    for (auto& rise : rises) {
      for (float& of : rise) of = kNearestRise;
    }
  }
  ALIQUOT_HOST_INLINE void begin_block(int64_t block, int64_t count) {
    first.decode(block, count);
    second.decode(block, count);
  }
  ALIQUOT_HOST_INLINE void load(int64_t, int64_t in_block, float* state) const {
    state[0] = first.values[in_block], state[1] = second.values[in_block];
  }
  ALIQUOT_HOST_INLINE void store(int64_t, int64_t in_block, const float* state) {
    first.values[in_block] = state[0], second.values[in_block] = state[1];
  }
  ALIQUOT_HOST_INLINE void end_block(int64_t block, int64_t count) {
    if (stochastic) draw_rises(block);
    first.encode(block, count, rises[0]);
    second.encode(block, count, rises[1]);
  }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const {
    ask_ahead(first.codes + i);
    ask_ahead(second.codes + i);
  }

 private:
  ALIQUOT_HOST_INLINE void draw_rises(int64_t block) {
    const RandomKey of_run = key;
    const int64_t quad = (global_offset + block) / 4;
    ALIQUOT_INDEPENDENT
    for (int64_t q = 0; q < kBlockElements / 4; ++q) {
      const RandomWords words = random_words(of_run, quad + q);
      for (int64_t k = 0; k < 4; ++k) {
        rises[0][4 * q + k] = rise_of(words.word[k], 0);
        rises[1][4 * q + k] = rise_of(words.word[k], 1);
      }
    }
  }
};

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
