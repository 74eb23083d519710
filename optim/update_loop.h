#pragma once
// The host's loop over one run of elements. Included by one source file for each instruction set, after it has defined
// stream_block() and stream_end(); everything here has internal linkage or is always inlined, so that no code compiled
// for a newer processor can be picked by the linker for an older one. Not a header for anybody else.

#include "optim/convert.h"
#include "optim/update_host.h"

// The arrays of a step never overlap (UpdateArgs), which the compiler cannot know.
#ifdef __clang__
#define ALIQUOT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define ALIQUOT_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace aliquot {
namespace {

struct Fp32Gradient {
  const float* data;
  explicit Fp32Gradient(const UpdateRun& run) : data(static_cast<const float*>(run.gradient)) {}
  ALIQUOT_RULE float load(int64_t i) const { return data[i]; }
};

struct Bf16Gradient {
  const uint16_t* data;
  explicit Bf16Gradient(const UpdateRun& run) : data(static_cast<const uint16_t*>(run.gradient)) {}
  ALIQUOT_RULE float load(int64_t i) const { return from_bf16(data[i]); }
};

struct WholeMaster {
  float* data;
  explicit WholeMaster(const UpdateRun& run) : data(run.master.whole) {}
  ALIQUOT_RULE float load(int64_t i) const { return data[i]; }
  ALIQUOT_RULE void store(int64_t i, int64_t, float value) { data[i] = value; }
  ALIQUOT_RULE void end_block(int64_t, int64_t) {}
};

/// A whole master and its working copy. The copy is never read here, so it goes past the caches, a block at a time.
template <typename Format>
struct CopiedMaster {
  float* data;
  uint16_t* copy;
  alignas(64) uint16_t staged[kBlockElements];
  explicit CopiedMaster(const UpdateRun& run) : data(run.master.whole), copy(static_cast<uint16_t*>(run.master.copy)) {}
  ALIQUOT_RULE float load(int64_t i) const { return data[i]; }
  ALIQUOT_RULE void store(int64_t i, int64_t in_block, float value) {
    data[i] = value;
    staged[in_block] = Format::of(value);
  }
  ALIQUOT_RULE void end_block(int64_t block, int64_t count) {
    if (count == kBlockElements) {
      stream_block(copy + block, staged);
    } else {
      for (int64_t i = 0; i < count; ++i) copy[block + i] = staged[i];
    }
  }
};

struct Bf16Format {
  ALIQUOT_RULE static uint16_t of(float value) { return high_half(value); }
};
struct Fp16Format {
  ALIQUOT_RULE static uint16_t of(float value) { return to_fp16(value); }
};

struct SplitMaster {
  uint16_t* high;
  int16_t* low;
  explicit SplitMaster(const UpdateRun& run) : high(run.master.high), low(run.master.low) {}
  ALIQUOT_RULE float load(int64_t i) const { return merged(high[i], low[i]); }
  ALIQUOT_RULE void store(int64_t i, int64_t, float value) {
    high[i] = high_half(value);
    low[i] = low_half(value);
  }
  ALIQUOT_RULE void end_block(int64_t, int64_t) {}
};

template <int kCount>
struct Fp32States {
  float* data[kCount > 0 ? kCount : 1] = {};
  explicit Fp32States(const UpdateRun& run) {
    for (int k = 0; k < kCount; ++k) data[k] = static_cast<float*>(run.states[k]);
  }
  ALIQUOT_RULE void load(int64_t i, float* state) const {
    for (int k = 0; k < kCount; ++k) state[k] = data[k][i];
  }
  ALIQUOT_RULE void store(int64_t i, const float* state) {
    for (int k = 0; k < kCount; ++k) data[k][i] = state[k];
  }
};

template <typename R, typename Gradient, typename Weights, typename States>
ALIQUOT_RULE void update_block(const R& rule, float factor, const Gradient& gradient, Weights& weights, States& states,
                               int64_t block, int64_t count) {
  ALIQUOT_INDEPENDENT
  for (int64_t in_block = 0; in_block < count; ++in_block) {
    const int64_t i = block + in_block;
    float state[kMaxStates];
    states.load(i, state);
    const float weight = rule.update(weights.load(i), gradient.load(i) * factor, state);
    states.store(i, state);
    weights.store(i, in_block, weight);
  }
  weights.end_block(block, count);
}

template <typename R, typename Gradient, typename Weights>
void update_run(const void* rule_of_step, const UpdateRun& run) {
  // Copies that nothing points at, so that the compiler keeps them in registers.
  const R rule = static_cast<const R*>(rule_of_step)->at(run.lr_scale, run.decay_scale);
  const Gradient gradient(run);
  Weights weights(run);
  Fp32States<R::kStateCount> states(run);
  const float factor = run.gradient_factor;
  int64_t block = 0;
  for (; block + kBlockElements <= run.count; block += kBlockElements) {
    update_block(rule, factor, gradient, weights, states, block, kBlockElements);
  }
  if (block < run.count) update_block(rule, factor, gradient, weights, states, block, run.count - block);
  stream_end();
}

template <typename R>
consteval RunsOfRule runs_of_rule() {
  return {{{update_run<R, Fp32Gradient, WholeMaster>, update_run<R, Fp32Gradient, CopiedMaster<Bf16Format>>,
            update_run<R, Fp32Gradient, CopiedMaster<Fp16Format>>, update_run<R, Fp32Gradient, SplitMaster>},
           {update_run<R, Bf16Gradient, WholeMaster>, update_run<R, Bf16Gradient, CopiedMaster<Bf16Format>>,
            update_run<R, Bf16Gradient, CopiedMaster<Fp16Format>>, update_run<R, Bf16Gradient, SplitMaster>}}};
}

constexpr UpdateRuns kRuns = {{runs_of_rule<AdamWRule>(), runs_of_rule<AdamRule>(), runs_of_rule<SgdRule>(),
                               runs_of_rule<MomentumRule>(), runs_of_rule<LionRule>()}};

}  // namespace
}  // namespace aliquot
