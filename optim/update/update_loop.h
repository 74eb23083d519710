#pragma once
// The host loop over one run of elements. A separate source file compiles it for each instruction set, and files that
// include <aliquot/rule.h> compile it for custom rules. All functions have internal linkage or are always inlined.
// Otherwise the linker could use code for a newer processor everywhere.

#include "optim/update/plain_blocks.h"
#include "optim/update/update_quantised.h"
#include "optim/update/update_streams.h"

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

template <typename R, typename Gradient, typename Weights, typename States>
ALIQUOT_HOST_INLINE void update_chunk(const R& rule, float factor, const Gradient& gradient, Weights& weights,
                                      States& states, int64_t block, int64_t begin, int64_t end) {
  ALIQUOT_INDEPENDENT
  for (int64_t in_block = begin; in_block < end; ++in_block) {
    const int64_t i = block + in_block;
    float state[kMaxStates];
    states.load(i, in_block, state);
    const float weight = rule.update(weights.load(i), gradient.load(i) * factor, state);
    states.store(i, in_block, state);
    weights.store(i, in_block, weight);
  }
}

template <typename R, typename Gradient, typename Weights, typename States>
ALIQUOT_HOST_INLINE void update_block(const R& rule, float factor, const Gradient& gradient, Weights& weights,
                                      States& states, int64_t block, int64_t count) {
  states.begin_block(block, count);
  if (count == kBlockElements) {
    for (int64_t chunk = 0; chunk < kBlockElements; chunk += kChunk) {
      gradient.ahead(block + chunk);
      weights.ahead(block + chunk);
      states.ahead(block + chunk);
      update_chunk(rule, factor, gradient, weights, states, block, chunk, chunk + kChunk);
    }
  } else {
    update_chunk(rule, factor, gradient, weights, states, block, 0, count);
  }
  states.end_block(block, count);
  weights.end_block(block, count);
}

template <typename Blocks, typename R, typename Gradient, typename Weights, typename States>
ALIQUOT_HOST_INLINE void run_all(const void* rule_of_step, const UpdateRun& run) {
  // Make local copies without aliases, so that the compiler keeps them in registers.
  const R rule = static_cast<const R*>(rule_of_step)->at(run.lr_scale, run.decay_scale);
  const Gradient gradient(run);
  Weights weights(run);
  States states(run);
  const float factor = run.gradient_factor;
  int64_t block = 0;
  for (; block + kBlockElements <= run.count; block += kBlockElements) {
    update_block(rule, factor, gradient, weights, states, block, kBlockElements);
  }
  if (block < run.count) update_block(rule, factor, gradient, weights, states, block, run.count - block);
  Blocks::end_stream();
}

/// An entry of the tables of update loops: a loop that is compiled for the instruction set of the file that includes
/// this header. Entries of other kinds, such as those of custom_rule.h, have the same two members.
template <typename FileBlocks = PlainBlocks>
struct PlainEntry {
  using Blocks = FileBlocks;
  template <typename R, typename Gradient, typename Weights, typename States>
  static void run(const void* rule, const UpdateRun& run) {
    run_all<Blocks, R, Gradient, Weights, States>(rule, run);
  }
};

template <typename Entry, typename R, typename Gradient, typename Weights>
consteval RunsByMoments runs_by_moments() {
  RunsByMoments runs = {Entry::template run<R, Gradient, Weights, Fp32States<R::kStateCount>>, nullptr, nullptr};
  if constexpr (R::kStateCount == 0) {
    runs[1] = runs[0];  // an optimizer without moments: both dtypes use one loop
  } else if constexpr (R::kStateCount <= kMaxRoundedStates) {
    runs[1] = Entry::template run<R, Gradient, Weights, Bf16States<R::kStateCount>>;
  }
  if constexpr (std::is_same_v<R, AdamWRule>)
    runs[2] = Entry::template run<R, Gradient, Weights, QuantisedStates<typename Entry::Blocks>>;
  return runs;
}

template <typename Entry, typename R, typename Gradient>
consteval RunsByMaster runs_by_master() {
  return {runs_by_moments<Entry, R, Gradient, WholeMaster>(),
          runs_by_moments<Entry, R, Gradient, CopiedMaster<Bf16Format, typename Entry::Blocks>>(),
          runs_by_moments<Entry, R, Gradient, CopiedMaster<Fp16Format, typename Entry::Blocks>>(),
          runs_by_moments<Entry, R, Gradient, SplitMaster>()};
}

template <typename Entry, typename R>
consteval RunsOfRule runs_of_rule() {
  return {runs_by_master<Entry, R, Fp32Gradient>(), runs_by_master<Entry, R, Bf16Gradient>()};
}

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
