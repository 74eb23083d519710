#pragma once
// The update on a GPU: one kernel launch for a shard. A warp processes one block, so it has one segment and one rule.
// Each thread processes packs of adjacent elements if all arrays are aligned to packs. For *.cu files.

#include <type_traits>

#include "kernels/device/launch_cuda.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/split_master.h"
#include "optim/update/stochastic.h"
#include "optim/update/update.h"

#pragma GCC visibility push(default)
namespace aliquot {

inline constexpr int kWarpThreads = 32;

__device__ inline float widened(float value) { return value; }
__device__ inline float widened(uint16_t value) { return bf16_to_float(value); }

/// Returns the segment that contains the block at `offset`, or null.
__device__ inline const Segment* segment_at(const UpdateArgs& args, int64_t offset) {
  int64_t low = 0, high = args.segment_count;  // the first segment that begins after offset is in [low, high]
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (args.segments[middle].offset <= offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return nullptr;
  const Segment* segment = args.segments + low - 1;
  return offset < segment->offset + segment->count ? segment : nullptr;
}

template <int kCount>
__device__ void store_copy(const Master& master, int64_t i, const float* weights) {
  if (master.copy == nullptr) return;
  Pack<uint16_t, kCount> copy;
  for (int k = 0; k < kCount; ++k) {
    copy.lane[k] = master.copy_dtype == DType::kBFloat16 ? master_high(weights[k]) : float_to_fp16(weights[k]);
  }
  store_pack(static_cast<uint16_t*>(master.copy) + i, copy);
}

template <bool kSplit, int kCount>
__device__ void load_master(const Master& master, int64_t i, float* weights) {
  if constexpr (kSplit) {
    const auto high = load_pack<kCount>(master.high + i);
    const auto low = load_pack<kCount>(master.low + i);
    for (int k = 0; k < kCount; ++k) weights[k] = merge_master(high.lane[k], low.lane[k]);
  } else {
    const auto whole = load_pack<kCount>(master.whole + i);
    for (int k = 0; k < kCount; ++k) weights[k] = whole.lane[k];
  }
}

template <bool kSplit, int kCount>
__device__ void store_master(const Master& master, int64_t i, const float* weights) {
  if constexpr (kSplit) {
    Pack<uint16_t, kCount> high;
    Pack<int16_t, kCount> low;
    for (int k = 0; k < kCount; ++k) high.lane[k] = master_high(weights[k]), low.lane[k] = master_low(weights[k]);
    store_pack(master.high + i, high);
    store_pack(master.low + i, low);
  } else {
    Pack<float, kCount> whole;
    for (int k = 0; k < kCount; ++k) whole.lane[k] = weights[k];
    store_pack(master.whole + i, whole);
    store_copy<kCount>(master, i, weights);
  }
}

/// The update of the elements of one segment. Gradient and Moment are float, or uint16_t for bf16.
template <typename R, typename Gradient, bool kSplit, typename Moment>
struct SegmentUpdate {
  const UpdateArgs& args;
  R rule;
  float factor;
  RandomKey key;
  int64_t to_global;  // index in the full parameter minus index in the shard

  /// Updates elements [i, i + kCount): first all loads, then all arithmetic, then all stores.
  template <int kCount>
  __device__ void at(int64_t i) const {
    constexpr int kStates = R::kStateCount;
    const auto gradient = load_pack<kCount>(static_cast<const Gradient*>(args.gradient) + i);
    float weights[kCount];
    load_master<kSplit, kCount>(args.master, i, weights);
    Pack<Moment, kCount> moments[kMaxStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) moments[s] = load_pack<kCount>(static_cast<const Moment*>(args.states[s]) + i);

    RandomWords words{};
    if constexpr (kStates > 0 && !std::is_same_v<Moment, float>) words = random_words(key, (i + to_global) / 4);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float state[kMaxStates];
      for (int s = 0; s < kStates; ++s) state[s] = widened(moments[s].lane[k]);
      weights[k] = rule.update(weights[k], widened(gradient.lane[k]) * factor, state);
      for (int s = 0; s < kStates; ++s)
        moments[s].lane[k] = narrowed(state[s], word_of<kCount>(words, i, k) >> (16 * s));
    }

    store_master<kSplit, kCount>(args.master, i, weights);
#pragma unroll
    for (int s = 0; s < kStates; ++s) store_pack(static_cast<Moment*>(args.states[s]) + i, moments[s]);
  }

  /// Selects a word without an array index, because an index known only at run time would force the words into memory.
  template <int kCount>
  __device__ static uint32_t word_of(const RandomWords& words, int64_t i, int k) {
    if constexpr (kCount == kPackElements) return words.word[k];
    const int64_t index = i % 4;
    return index < 2 ? (index == 0 ? words.word[0] : words.word[1]) : (index == 2 ? words.word[2] : words.word[3]);
  }

  __device__ static Moment narrowed(float value, uint32_t noise) {
    if constexpr (std::is_same_v<Moment, float>) {
      return value;
    } else {
      return stochastic_bf16(value, noise);
    }
  }
};

template <typename R, typename Gradient, bool kSplit, typename Moment>
__global__ void __launch_bounds__(kLaunchThreads)
    update_blocks(const UpdateArgs args, const R rule, float factor, uint64_t seed, int64_t step, bool packs) {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  for (int64_t block = launch_thread() / kWarpThreads; block * kBlockElements < args.count;
       block += launch_stride() / kWarpThreads) {
    const int64_t first = block * kBlockElements;
    const Segment* segment = segment_at(args, first);
    if (segment == nullptr) continue;
    const SegmentUpdate<R, Gradient, kSplit, Moment> update{args, rule.at(segment->lr_scale, segment->decay_scale),
                                                            factor, rounding_key(seed, step, segment->parameter),
                                                            segment->global_offset - segment->offset};
    const int64_t end = min(segment->offset + segment->count, first + kBlockElements);
    for (int64_t i = first + lane * kPackElements; i < end; i += kWarpThreads * kPackElements) {
      if (packs && i + kPackElements <= end) {
        update.template at<kPackElements>(i);
      } else {
        for (int64_t k = i; k < min(i + kPackElements, end); ++k) update.template at<1>(k);
      }
    }
  }
}

/// Returns whether every array is aligned to packs. If so, every block of each array is also aligned to packs.
inline bool packs_everywhere(const UpdateArgs& args) {
  const auto aligned = [](const void* at, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(at) % (kPackElements * bytes) == 0;
  };
  bool all = aligned(args.gradient, element_bytes(args.gradient_dtype)) && aligned(args.master.whole, 4) &&
             aligned(args.master.copy, 2) && aligned(args.master.high, 2) && aligned(args.master.low, 2);
  for (const void* state : args.states) all = all && aligned(state, element_bytes(args.moments));
  return all;
}

template <typename R, typename Gradient, bool kSplit, typename Moment>
void launch(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  const int64_t thread_count = (args.count + kBlockElements - 1) / kBlockElements * kWarpThreads;
  start_kernel(stream, "update", launch_grid(thread_count), update_blocks<R, Gradient, kSplit, Moment>, args, rule,
               step.gradient_factor, step.seed, step.step, packs_everywhere(args));
}

template <typename R, typename Gradient, bool kSplit>
void launch_by_moments(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  if constexpr (R::kStateCount > 0) {
    if (args.moments == DType::kBFloat16) return launch<R, Gradient, kSplit, uint16_t>(stream, args, step, rule);
  }
  launch<R, Gradient, kSplit, float>(stream, args, step, rule);
}

template <typename R, typename Gradient>
void launch_by_master(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  if (args.master.whole == nullptr) return launch_by_moments<R, Gradient, true>(stream, args, step, rule);
  launch_by_moments<R, Gradient, false>(stream, args, step, rule);
}

/// Enqueues the update of a rule whose moments are fp32 or bf16.
template <typename R>
void launch_update(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  if (args.gradient_dtype == DType::kBFloat16) return launch_by_master<R, uint16_t>(stream, args, step, rule);
  launch_by_master<R, float>(stream, args, step, rule);
}

}  // namespace aliquot
#pragma GCC visibility pop
