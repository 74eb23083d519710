#pragma once
// Launches element-wise loops on a GPU. For *.cu files.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/enqueue_cuda.h"
#include "kernels/device/start_kernel_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The most bytes that one instruction loads or stores.
inline constexpr int kLoadBytes = 16;

/// `kCount` adjacent elements, aligned so that one instruction loads or stores up to 16 bytes of them.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kLoadBytes ? kCount * sizeof(T) : kLoadBytes) Pack {
  T lane[kCount];
};

template <int kCount, class T>
__device__ Pack<T, kCount> load_pack(const T* at) {
  return *reinterpret_cast<const Pack<T, kCount>*>(at);
}

template <class T, int kCount>
__device__ void store_pack(T* at, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(at) = pack;
}

/// Like store_pack(), for global memory. Stores up to 16 bytes with one instruction. The compiler splits the store of
/// store_pack() into stores of 2 or 4 bytes if the loop does not also load from its address.
template <class T, int kCount>
__device__ void store_global_pack(T* at, const Pack<T, kCount>& pack) {
  if constexpr (sizeof(pack) < 4) {
    store_pack(at, pack);
  } else {
    using Word = std::conditional_t<sizeof(pack) == 4, uint32_t, std::conditional_t<sizeof(pack) == 8, uint2, uint4>>;
    constexpr int kWords = sizeof(pack) / sizeof(Word);
    Word words[kWords];
    memcpy(words, &pack, sizeof(pack));
    for (int w = 0; w < kWords; ++w) store_word(reinterpret_cast<Word*>(at) + w, words[w]);
  }
}

inline constexpr int kPackElements = 4;
/// The elements of type T that one instruction loads or stores.
template <class T>
inline constexpr int kLoadElements = kLoadBytes / static_cast<int>(sizeof(T));
inline constexpr int kLaunchThreads = 256;

/// Returns the grid for `thread_count` threads: 1 to kMaxBlocks blocks. Kernels use grid-stride loops.
inline Grid launch_grid(int64_t thread_count) {
  constexpr int64_t kMaxBlocks = 2048;  // enough to fill the largest GPU
  const int64_t blocks = (thread_count + kLaunchThreads - 1) / kLaunchThreads;
  return {static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMaxBlocks ? blocks : kMaxBlocks), kLaunchThreads};
}

__device__ inline int64_t launch_thread() { return static_cast<int64_t>(blockIdx.x) * kLaunchThreads + threadIdx.x; }
__device__ inline int64_t launch_stride() { return static_cast<int64_t>(gridDim.x) * kLaunchThreads; }

/// Returns the smallest index i for which `p + i` is aligned to a Pack for every pointer p in `at`. Returns -1 if no
/// such index exists.
template <int kCount = kPackElements, class... T>
int64_t elements_before_packs(const T*... at) {
  for (int64_t head = 0; head < kCount; ++head) {
    if (((reinterpret_cast<uintptr_t>(at + head) % alignof(Pack<T, kCount>) == 0) && ...)) return head;
  }
  return -1;
}

/// The elements of a pack of `Op`: Op::kElements, or kPackElements if `Op` does not declare it.
template <class Op>
inline constexpr int kElementsOf = kPackElements;
template <class Op>
requires(Op::kElements > 0) inline constexpr int kElementsOf<Op> = Op::kElements;

/// Calls op.at<kElementsOf<Op>>(i) for `pack_count` packs from `head` on, and op.at<1>(i) for each element before
/// and after them.
template <class Op>
__global__ void for_elements(Op op, int64_t head, int64_t pack_count, int64_t count) {
  constexpr int kCount = kElementsOf<Op>;
  for (int64_t p = launch_thread(); p < pack_count; p += launch_stride()) op.template at<kCount>(head + kCount * p);
  const int64_t rest = count - kCount * pack_count;
  for (int64_t r = launch_thread(); r < rest; r += launch_stride()) {
    op.template at<1>(r < head ? r : r + kCount * pack_count);
  }
}

/// Launches op over [0, count). `at` must list every pointer that op accesses: packs are used only if all can be
/// aligned.
template <class Op, class... T>
void launch_elements(Stream& stream, const char* loop, int64_t count, const Op& op, const T*... at) {
  if (count <= 0) return;
  constexpr int kCount = kElementsOf<Op>;
  const int64_t found = elements_before_packs<kCount>(at...);
  const int64_t head = found < 0 || found > count ? 0 : found;
  const int64_t pack_count = found < 0 ? 0 : (count - head) / kCount;
  const int64_t thread_count = pack_count > 0 ? pack_count : count;
  start_kernel(stream, loop, launch_grid(thread_count), for_elements<Op>, op, head, pack_count, count);
}

}  // namespace aliquot
#pragma GCC visibility pop
