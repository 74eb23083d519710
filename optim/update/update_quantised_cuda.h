#pragma once
// AdamW with 8-bit moments on a GPU. A warp holds a block in registers, with eight elements in each thread, computes
// the scales with shuffles, and writes the codes. Like the update with fp32 moments, this is one pass. For *.cu files.

#include "optim/update/dynamic_code.h"
#include "optim/update/update_cuda.h"

namespace aliquot {

__device__ inline uint32_t warp_max(uint32_t bits) {
  for (int apart = kWarpThreads / 2; apart > 0; apart /= 2) {
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, apart));
  }
  return bits;
}

/// One moment of a warp's block. Each thread has kIterations packs of kPack adjacent elements.
template <typename Code, int kPack>
struct WarpMoment {
  static constexpr int kIterations = static_cast<int>(kBlockElements) / kWarpThreads / kPack;
  uint8_t* codes;
  float* scales;
  float scale;
  float values[kIterations][kPack];

  __device__ WarpMoment(const UpdateArgs& args, int state, int64_t first)
      : codes(static_cast<uint8_t*>(args.states[state])),
        scales(static_cast<float*>(args.states[state + 1]) + first / kBlockElements),
        scale(*scales),
        values{} {}

  __device__ void load(int iteration, int64_t i) {
    const auto pack = load_pack<kPack>(codes + i);
    for (int k = 0; k < kPack; ++k) values[iteration][k] = Code::value(pack.lane[k]) * scale;
  }
  __device__ void find_scale() {
    uint32_t greatest = 0;
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      for (int k = 0; k < kPack; ++k) greatest = max(greatest, magnitude_bits(values[iteration][k]));
    }
    scale = scale_of(warp_max(greatest));
    if (threadIdx.x % kWarpThreads == 0) *scales = scale;
  }
  __device__ void store(int iteration, int64_t i, const float* rises) const {
    Pack<uint8_t, kPack> pack;
    const float inverse = inverse_of(scale);
    for (int k = 0; k < kPack; ++k) pack.lane[k] = Code::of(values[iteration][k] * inverse, rises[k]);
    store_pack(codes + i, pack);
  }
};

/// Updates the block [first, end) of one segment. With a kPack of 4 the block must be full: 256 elements.
template <typename R, typename Gradient, bool kSplit, int kPack>
__device__ void update_quantised_block(const SegmentUpdate<R, Gradient, kSplit, float>& update, int64_t first,
                                       int64_t end) {
  WarpMoment<SignedCode, kPack> mean(update.args, 0, first);
  WarpMoment<UnsignedCode, kPack> square(update.args, 2, first);
  const int64_t own = first + threadIdx.x % kWarpThreads * kPack;
#pragma unroll
  for (int iteration = 0; iteration < mean.kIterations; ++iteration) {
    const int64_t i = own + iteration * kWarpThreads * kPack;
    if (i >= end) continue;
    mean.load(iteration, i);
    square.load(iteration, i);
    const auto gradient = load_pack<kPack>(static_cast<const Gradient*>(update.args.gradient) + i);
    float weights[kPack];
    load_master<kSplit, kPack>(update.args.master, i, weights);
    for (int k = 0; k < kPack; ++k) {
      float state[kMaxStates] = {mean.values[iteration][k], square.values[iteration][k]};
      weights[k] = update.rule.update(weights[k], widened(gradient.lane[k]) * update.factor, state);
      mean.values[iteration][k] = state[0], square.values[iteration][k] = state[1];
    }
    store_master<kSplit, kPack>(update.args.master, i, weights);
  }
  __syncwarp();  // every thread has read the scales, which find_scale() overwrites
  mean.find_scale();
  square.find_scale();
#pragma unroll
  for (int iteration = 0; iteration < mean.kIterations; ++iteration) {
    const int64_t i = own + iteration * kWarpThreads * kPack;
    if (i >= end) continue;
    float rises[2][kPack];
    const bool stochastic = update.args.rounding == Rounding::kStochastic;
    const RandomWords words = stochastic ? random_words(update.key, (i + update.to_global) / 4) : RandomWords{};
    for (int k = 0; k < kPack; ++k) {
      for (int s = 0; s < 2; ++s)
        rises[s][k] = stochastic ? rise_of(update.template word_of<kPack>(words, i, k), s) : kNearestRise;
    }
    mean.store(iteration, i, rises[0]);
    square.store(iteration, i, rises[1]);
  }
}

template <typename R, typename Gradient, bool kSplit>
__global__ void __launch_bounds__(kLaunchThreads)
    update_quantised_blocks(const UpdateArgs args, const R rule, float factor, uint64_t seed, int64_t step,
                            bool packs) {
  for (int64_t block = launch_thread() / kWarpThreads; block * kBlockElements < args.count;
       block += launch_stride() / kWarpThreads) {
    const int64_t first = block * kBlockElements;
    const Segment* segment = segment_at(args, first);
    if (segment == nullptr) continue;
    const SegmentUpdate<R, Gradient, kSplit, float> update{args, rule.at(segment->lr_scale, segment->decay_scale),
                                                           factor, rounding_key(seed, step, segment->parameter),
                                                           segment->global_offset - segment->offset};
    const int64_t end = min(segment->offset + segment->count, first + kBlockElements);
    if (packs && end == first + kBlockElements) {
      update_quantised_block<R, Gradient, kSplit, kPackElements>(update, first, end);
    } else {
      update_quantised_block<R, Gradient, kSplit, 1>(update, first, end);
    }
  }
}

template <typename R, typename Gradient, bool kSplit>
void launch_quantised(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  const int64_t thread_count = (args.count + kBlockElements - 1) / kBlockElements * kWarpThreads;
  start_kernel(stream, "8-bit update", launch_grid(thread_count), update_quantised_blocks<R, Gradient, kSplit>, args,
               rule, step.gradient_factor, step.seed, step.step, packs_everywhere(args));
}

template <typename R>
void launch_quantised_update(Stream& stream, const UpdateArgs& args, const UpdateStep& step, const R& rule) {
  const bool split = args.master.whole == nullptr;
  if (args.gradient_dtype == DType::kBFloat16) {
    return split ? launch_quantised<R, uint16_t, true>(stream, args, step, rule)
                 : launch_quantised<R, uint16_t, false>(stream, args, step, rule);
  }
  split ? launch_quantised<R, float, true>(stream, args, step, rule)
        : launch_quantised<R, float, false>(stream, args, step, rule);
}

}  // namespace aliquot
