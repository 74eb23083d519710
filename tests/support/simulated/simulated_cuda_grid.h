#pragma once
// Runs kernels that are compiled as C++. The threads of a block are fibers of one host thread. They start in a random
// order, and wait for one another at barriers and shuffles. So tests without a GPU find missing barriers, warps that
// diverge before a shuffle, and wrong indices. They do not find errors that depend on the interleaving of warps between
// barriers or on the GPU's memory model.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>
#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)

/// Indices and dimensions of the kernel thread that currently runs.
inline thread_local dim3 blockIdx, threadIdx, blockDim, gridDim;

namespace aliquot::simulated {

struct GridShape {
  const char* kernel = "";
  unsigned blocks = 1, threads = 1, shared_bytes = 0;
};

/// Runs `thread` once for each thread of the grid, one block after another. Aborts with a message if the threads of a
/// block deadlock.
void run_grid(const GridShape& shape, const std::function<void()>& thread);

/// Only kernel threads may call the following functions.
void* shared_memory();
void wait_for_block();
void wait_for_warp();

inline constexpr int kWarpLanes = 32, kLaneBytes = 64;
/// Waits for all lanes of the warp. Returns their values at a stride of kLaneBytes, valid until the next exchange.
const std::byte* exchange_in_warp(const void* value, std::size_t bytes);

template <class T>
T of_lane(const T& value, int lane) {
  static_assert(sizeof(T) <= kLaneBytes);
  T result;
  std::memcpy(&result, exchange_in_warp(&value, sizeof(T)) + lane * kLaneBytes, sizeof(T));
  return result;
}

/// Starts a copy to shared memory that takes effect in the thread's next wait_for_copies(). Until then, the destination
/// is NaN. Sets bytes after the first `source_bytes` to zero. Aborts if an address is not a multiple of `bytes`, if the
/// destination is not in shared memory, or if the thread returns before it waits.
void start_copy(void* to, const void* from, std::size_t bytes, std::size_t source_bytes);
void wait_for_copies();

inline int own_lane() { return static_cast<int>(threadIdx.x) % kWarpLanes; }

}  // namespace aliquot::simulated

// The CUDA functions that kernels call.
inline void __syncthreads() { aliquot::simulated::wait_for_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { aliquot::simulated::wait_for_warp(); }

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return aliquot::simulated::of_lane(value, lane % aliquot::simulated::kWarpLanes);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return aliquot::simulated::of_lane(value, aliquot::simulated::own_lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  const int own = aliquot::simulated::own_lane(), from = own + distance;
  return aliquot::simulated::of_lane(value, from < aliquot::simulated::kWarpLanes ? from : own);
}
inline uint32_t __reduce_max_sync(unsigned mask, uint32_t value) {
  for (int distance = aliquot::simulated::kWarpLanes / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(mask, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

template <class T>
T atomicAdd(T* at, T value) {
  return std::atomic_ref(*at).fetch_add(value);
}
template <class T>
T atomicMin(T* at, T value) {
  T before = std::atomic_ref(*at).load();
  while (value < before && !std::atomic_ref(*at).compare_exchange_weak(before, value)) {
  }
  return before;
}

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
