#pragma once
// Accessors of the host loop for the arrays of an update: gradient, master and states, in each supported format. Part
// of update_loop.h.

#include "kernels/formats/float16.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/split_master.h"
#include "optim/update/stochastic.h"
#include "optim/update/update_host.h"

// Tells the compiler that iterations are independent: the arrays of an update never overlap (UpdateArgs).
#ifdef __clang__
#define ALIQUOT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define ALIQUOT_INDEPENDENT _Pragma("GCC ivdep")
#endif

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

/// The loop works on chunks of kChunk elements and prefetches the chunk that is kPrefetchDistance elements ahead. The
/// arithmetic of a rule takes so long that hardware prefetching is late. In measurements, the update took the minimum
/// time that the memory bandwidth allows. Without this prefetch, it took 1.2 times as long.
constexpr int64_t kChunk = 32, kPrefetchDistance = 512;

template <typename T>
ALIQUOT_HOST_INLINE void ask_ahead(const T* chunk) {
  // Use integer arithmetic, because the address may be beyond the array. A prefetch of an invalid address does nothing.
  const uintptr_t from = reinterpret_cast<uintptr_t>(chunk) + kPrefetchDistance * sizeof(T);
  for (uintptr_t line = 0; line < kChunk * sizeof(T); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(from + line));
  }
}

struct Fp32Gradient {
  const float* data;
  explicit Fp32Gradient(const UpdateRun& run) : data(static_cast<const float*>(run.gradient)) {}
  ALIQUOT_HOST_INLINE float load(int64_t i) const { return data[i]; }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const { ask_ahead(data + i); }
};

struct Bf16Gradient {
  const uint16_t* data;
  explicit Bf16Gradient(const UpdateRun& run) : data(static_cast<const uint16_t*>(run.gradient)) {}
  ALIQUOT_HOST_INLINE float load(int64_t i) const { return bf16_to_float(data[i]); }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const { ask_ahead(data + i); }
};

struct WholeMaster {
  float* data;
  explicit WholeMaster(const UpdateRun& run) : data(run.master.whole) {}
  ALIQUOT_HOST_INLINE float load(int64_t i) const { return data[i]; }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const { ask_ahead(data + i); }
  ALIQUOT_HOST_INLINE void store(int64_t i, int64_t, float value) { data[i] = value; }
  ALIQUOT_HOST_INLINE void end_block(int64_t, int64_t) {}
};

/// An fp32 master with a working copy. The update never reads the copy, so `Blocks` writes it with non-temporal stores,
/// one block at a time.
template <typename Format, typename Blocks>
struct CopiedMaster {
  float* data;
  uint16_t* copy;
  alignas(64) uint16_t staged[kBlockElements];
  // cppcheck-suppress uninitMemberVar ; store() sets `staged` before end_block() reads it
  explicit CopiedMaster(const UpdateRun& run) : data(run.master.whole), copy(static_cast<uint16_t*>(run.master.copy)) {}
  ALIQUOT_HOST_INLINE float load(int64_t i) const { return data[i]; }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const { ask_ahead(data + i); }
  ALIQUOT_HOST_INLINE void store(int64_t i, int64_t in_block, float value) {
    data[i] = value;
    staged[in_block] = Format::of(value);
  }
  ALIQUOT_HOST_INLINE void end_block(int64_t block, int64_t count) {
    if (count == kBlockElements) {
      Blocks::stream(copy + block, staged);
    } else {
      for (int64_t i = 0; i < count; ++i) copy[block + i] = staged[i];
    }
  }
};

struct Bf16Format {
  ALIQUOT_HOST_INLINE static uint16_t of(float value) { return master_high(value); }
};
struct Fp16Format {
  ALIQUOT_HOST_INLINE static uint16_t of(float value) { return float_to_fp16(value); }
};

struct SplitMaster {
  uint16_t* high;
  int16_t* low;
  explicit SplitMaster(const UpdateRun& run) : high(run.master.high), low(run.master.low) {}
  ALIQUOT_HOST_INLINE float load(int64_t i) const { return merge_master(high[i], low[i]); }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const {
    ask_ahead(high + i);
    ask_ahead(low + i);
  }
  ALIQUOT_HOST_INLINE void store(int64_t i, int64_t, float value) {
    high[i] = master_high(value);
    low[i] = master_low(value);
  }
  ALIQUOT_HOST_INLINE void end_block(int64_t, int64_t) {}
};

template <int kCount>
struct Fp32States {
  float* data[kMaxStates] = {};
  explicit Fp32States(const UpdateRun& run) {
    for (int k = 0; k < kCount; ++k) data[k] = static_cast<float*>(run.states[k]);
  }
  ALIQUOT_HOST_INLINE void begin_block(int64_t, int64_t) {}
  ALIQUOT_HOST_INLINE void end_block(int64_t, int64_t) {}
  ALIQUOT_HOST_INLINE void load(int64_t i, int64_t, float* state) const {
    for (int k = 0; k < kCount; ++k) state[k] = data[k][i];
  }
  ALIQUOT_HOST_INLINE void store(int64_t i, int64_t, const float* state) {
    for (int k = 0; k < kCount; ++k) data[k][i] = state[k];
  }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const {
    for (int k = 0; k < kCount; ++k) ask_ahead(data[k] + i);
  }
};

template <int kCount>
struct Bf16States {
  uint16_t* data[kMaxStates] = {};
  RandomKey key;
  int64_t global_offset;
  alignas(64) uint32_t noise[kBlockElements];
  // cppcheck-suppress uninitMemberVar ; begin_block() sets `noise`
  explicit Bf16States(const UpdateRun& run) : key(run.key), global_offset(run.global_offset) {
    for (int k = 0; k < kCount; ++k) data[k] = static_cast<uint16_t*>(run.states[k]);
  }
  ALIQUOT_HOST_INLINE void begin_block(int64_t block, int64_t) {
    const RandomKey of_run = key;
    const int64_t quad = (global_offset + block) / 4;
    ALIQUOT_INDEPENDENT
    for (int64_t q = 0; q < kBlockElements / 4; ++q) {
      const RandomWords words = random_words(of_run, quad + q);
      for (int64_t k = 0; k < 4; ++k) noise[4 * q + k] = words.word[k];
    }
  }
  ALIQUOT_HOST_INLINE void end_block(int64_t, int64_t) {}
  ALIQUOT_HOST_INLINE void load(int64_t i, int64_t, float* state) const {
    for (int k = 0; k < kCount; ++k) state[k] = bf16_to_float(data[k][i]);
  }
  ALIQUOT_HOST_INLINE void store(int64_t i, int64_t in_block, const float* state) {
    for (int k = 0; k < kCount; ++k) data[k][i] = stochastic_bf16(state[k], noise[in_block] >> (16 * k));
  }
  ALIQUOT_HOST_INLINE void ahead(int64_t i) const {
    for (int k = 0; k < kCount; ++k) ask_ahead(data[k] + i);
  }
};

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
