#include "kernels/elementwise/block_digest_cuda.h"
#include "optim/update/state_digests.h"
#include "optim/update/state_digests_cuda.h"
#include "optim/update/update_cuda.h"

namespace aliquot {
namespace {

/// One array of the state. An array of scales of 8-bit moments has one fp32 value for each block.
struct DigestedArray {
  const std::byte* data;
  int64_t block_bytes;
  bool is_scale;
};

/// The arrays and digests of a shard. Null: absent or not checked.
struct DigestedState {
  DigestedArray arrays[kStatePartCount - 1], states[kMaxStates];
  uint64_t* digests[kStatePartCount];
};

DigestedState digested_state(const UpdateArgs& args) {
  const StateArrays arrays = state_arrays(args.master);
  const auto array = [](const void* data, int64_t element) {
    return DigestedArray{static_cast<const std::byte*>(data), kBlockElements * element, false};
  };
  DigestedState state{};
  state.arrays[static_cast<int>(StatePart::kParameters)] = array(arrays.parameters, arrays.parameter_bytes);
  state.arrays[static_cast<int>(StatePart::kMaster)] = array(arrays.master, arrays.master_bytes);
  for (int s = 0; s < kMaxStates; ++s) {
    const int64_t block_bytes = state_offset_bytes(args.moments, s, kBlockElements);
    state.states[s] = {static_cast<const std::byte*>(args.states[s]), block_bytes, block_bytes < kBlockElements};
  }
  for (int p = 0; p < kStatePartCount; ++p) state.digests[p] = args.check->digests[static_cast<std::size_t>(p)];
  return state;
}

/// Returns the digest of a block with `count` elements, to all lanes.
__device__ uint64_t digest_of(const DigestedArray& array, int64_t block, int64_t count) {
  const int64_t size_bytes = array.is_scale ? array.block_bytes : count * array.block_bytes / kBlockElements;
  return warp_block_digest(array.data + block * array.block_bytes, size_bytes);
}

/// Calls body(part, digest) for all parts of a block, on all lanes of the warp.
template <class Body>
__device__ void for_parts(const DigestedState& state, int64_t block, int64_t count, const Body& body) {
  constexpr int kOptimizer = static_cast<int>(StatePart::kOptimizer);
  for (int p = 0; p < kOptimizer; ++p) {
    if (state.digests[p] != nullptr && state.arrays[p].data != nullptr)
      body(p, digest_of(state.arrays[p], block, count));
  }
  if (state.digests[kOptimizer] == nullptr) return;
  bool any = false;
  uint64_t digest = 0;
  for (const DigestedArray& array : state.states) {
    if (array.data == nullptr) continue;
    digest = digest * kDigestChainFactor + digest_of(array, block, count);
    any = true;
  }
  if (any) body(kOptimizer, digest);
}

/// Calls body(block, part, digest) for all blocks with elements, on all lanes of a warp.
template <class Body>
__device__ void for_digests(const UpdateArgs& args, const DigestedState& state, const Body& body) {
  for (int64_t block = launch_warp(); block * kBlockElements < args.count; block += launch_warp_stride()) {
    const int64_t first = block * kBlockElements;
    const Segment* segment = segment_at(args, first);
    if (segment == nullptr) continue;
    const int64_t count = min(segment->offset + segment->count - first, kBlockElements);
    for_parts(state, block, count, [&](int part, uint64_t digest) { body(block, part, digest); });
  }
}

/// Kernels run in the order of their steps, so `found->step` is of an earlier step, of this one, or kNone.
__device__ void note_difference(FoundDifference* found, unsigned long long step, int64_t block, int part) {
  if (atomicMin(&found->step, step) < step) return;
  atomicMin(&found->block_and_part, static_cast<unsigned long long>(block * kStatePartCount + part));
}

__global__ void __launch_bounds__(kLaunchThreads)
    compare_blocks(const UpdateArgs args, const DigestedState state, FoundDifference* found, unsigned long long step) {
  for_digests(args, state, [&](int64_t block, int part, uint64_t digest) {
    if (warp_lane() == 0 && digest != state.digests[part][block]) note_difference(found, step, block, part);
  });
}

__global__ void __launch_bounds__(kLaunchThreads) record_blocks(const UpdateArgs args, const DigestedState state) {
  for_digests(args, state, [&](int64_t block, int part, uint64_t digest) {
    if (warp_lane() == 0) state.digests[part][block] = digest;
  });
}

Grid grid_of(const UpdateArgs& args) {
  return launch_grid((args.count + kBlockElements - 1) / kBlockElements * kLanesPerWarp);
}

}  // namespace

void compare_digests(Stream& stream, const UpdateArgs& args, int64_t reported_step) {
  start_kernel(stream, "compare_digests", grid_of(args), compare_blocks, args, digested_state(args), args.check->found,
               static_cast<unsigned long long>(reported_step));
}

void record_digests(Stream& stream, const UpdateArgs& args) {
  start_kernel(stream, "record_digests", grid_of(args), record_blocks, args, digested_state(args));
}

}  // namespace aliquot
