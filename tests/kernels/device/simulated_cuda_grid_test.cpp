// Tests of the simulated GPU's grid: it runs what CUDA would run, and it detects errors in kernels.
#include "tests/support/simulated/simulated_cuda_grid.h"

#include <gtest/gtest.h>
#include <numeric>
#include <vector>

namespace aliquot::simulated {
namespace {

TEST(SimulatedGrid, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> runs(3 * 70, 0);
  run_grid({"count", 3, 70}, [&] {
    ASSERT_EQ(gridDim.x, 3u);
    ASSERT_EQ(blockDim.x, 70u);
    ++runs[blockIdx.x * blockDim.x + threadIdx.x];
  });
  EXPECT_EQ(runs, std::vector<int>(3 * 70, 1));
}

// Each thread reads the value of its neighbour and then overwrites its own, so it needs a barrier in between. Returns
// in how many of 8 launches the result was correct, with or without that barrier.
int correct_rotation_count(bool with_barrier) {
  constexpr unsigned kThreads = 96;
  std::vector<int> to(kThreads);
  int correct = 0;
  for (int launch = 0; launch < 8; ++launch) {
    run_grid({"rotate", 1, kThreads, kThreads * sizeof(int)}, [&] {
      int* words = static_cast<int*>(shared_memory());
      words[threadIdx.x] = static_cast<int>(threadIdx.x);
      __syncthreads();
      const int next = words[(threadIdx.x + 1) % kThreads];
      if (with_barrier) __syncthreads();
      words[threadIdx.x] = next;
      __syncthreads();
      to[threadIdx.x] = words[(threadIdx.x + 1) % kThreads];
    });
    std::vector<int> expected(kThreads);
    for (unsigned t = 0; t < kThreads; ++t) expected[t] = static_cast<int>((t + 2) % kThreads);
    correct += to == expected;
  }
  return correct;
}

TEST(SimulatedGrid, BarriersWorkAndAMissingOneGivesWrongResults) {
  EXPECT_EQ(correct_rotation_count(true), 8);
  EXPECT_EQ(correct_rotation_count(false), 0);
}

TEST(SimulatedGrid, ShufflesAndReductionsExchangeWithinAWarp) {
  std::vector<int> down(64), across(64), third(64);
  std::vector<unsigned> most(64);
  run_grid({"exchange", 1, 64}, [&] {
    const int own = static_cast<int>(threadIdx.x);
    down[threadIdx.x] = __shfl_down_sync(0xffffffffu, own, 16);
    across[threadIdx.x] = __shfl_xor_sync(0xffffffffu, own, 1);
    third[threadIdx.x] = __shfl_sync(0xffffffffu, own, 3);
    most[threadIdx.x] = __reduce_max_sync(0xffffffffu, threadIdx.x);
  });
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, warp = t - lane;
    EXPECT_EQ(down[static_cast<std::size_t>(t)], lane + 16 < 32 ? t + 16 : t);
    EXPECT_EQ(across[static_cast<std::size_t>(t)], t ^ 1);
    EXPECT_EQ(third[static_cast<std::size_t>(t)], warp + 3);
    EXPECT_EQ(most[static_cast<std::size_t>(t)], static_cast<unsigned>(warp + 31));
  }
}

TEST(SimulatedGrid, BarriersIgnoreThreadsThatHaveReturned) {
  int sum = 0;
  run_grid({"leave", 1, 64}, [&] {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    ++sum;
  });
  EXPECT_EQ(sum, 40);
}

TEST(SimulatedGridDeathTest, ADivergentWarpAbortsWithItsState) {
  EXPECT_DEATH(run_grid({"part", 1, 32},
                        [] {
                          if (threadIdx.x < 16)
                            __shfl_xor_sync(0xffffffffu, 1, 1);
                          else
                            __syncthreads();
                        }),
               "kernel part, block 0 of 1: 32 of 32 threads are live, 16 wait at the block's barrier");
}

TEST(SimulatedGrid, UnwrittenSharedMemoryReadsAsNan) {
  float seen = 0;
  run_grid({"read", 2, 1, sizeof(float)}, [&] {
    auto* words = static_cast<float*>(shared_memory());
    seen = *words;
    *words = 1.0f;
  });
  EXPECT_NE(seen, seen);
}

TEST(SimulatedGrid, CopiesTakeEffectWhenTheirThreadWaits) {
  alignas(16) const float from[4] = {1, 2, 3, 4};
  std::vector<float> started(32), waited(32), missing(32);
  run_grid({"copy", 1, 32, 33 * sizeof from}, [&] {
    auto* words = static_cast<float*>(shared_memory());
    float* own = words + 4 * threadIdx.x;
    *own = 7;
    start_copy(own, from, sizeof from, sizeof from);
    started[threadIdx.x] = *own;
    wait_for_copies();
    waited[threadIdx.x] = own[3];
    start_copy(own, nullptr, sizeof from, 0);
    wait_for_copies();
    missing[threadIdx.x] = own[3];
  });
  for (const float value : started) EXPECT_NE(value, value);
  EXPECT_EQ(waited, std::vector<float>(32, 4.0f));
  EXPECT_EQ(missing, std::vector<float>(32, 0.0f));
}

TEST(SimulatedGridDeathTest, InvalidCopiesAbort) {
  alignas(16) static float from[8] = {};
  const auto copy_once = [](int to, int source, bool wait) {
    run_grid({"copy", 1, 1, sizeof from}, [=] {
      start_copy(static_cast<float*>(shared_memory()) + to, from + source, 16, 16);
      if (wait) wait_for_copies();
    });
  };
  copy_once(4, 4, true);
  EXPECT_DEATH(copy_once(4, 4, false), "kernel copy, block 0, thread 0: the thread returned before it waited");
  EXPECT_DEATH(copy_once(1, 4, true), "an address is not aligned");
  EXPECT_DEATH(copy_once(4, 1, true), "an address is not aligned");
  EXPECT_DEATH(copy_once(8, 4, true), "the destination is not in shared memory");
}

}  // namespace
}  // namespace aliquot::simulated
