#include "kernels/system/thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/system/error.h"
#include "tests/support/limited_memory.h"

namespace aliquot {
namespace {

TEST(ThreadPool, RangesCoverTheCountOnceAndStartAtMultiplesOfTheGrain) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 255, 256, 4096, 4097, 100'003}) {
      std::vector<int> touched(count, 0);
      std::mutex mutex;
      pool.for_ranges(count, 256, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(begin % 256 == 0 && (end % 256 == 0 || end == count)) << begin << " to " << end << " of " << count;
        for (int64_t i = begin; i < end; ++i) ++touched[i];
      });
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(touched[i], 1) << i << " of " << count << ", " << threads << " threads";
    }
  }
}

TEST(ThreadPool, UsesAllItsThreads) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  pool.for_ranges(3000, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 3u);
}

TEST(ThreadPool, RunsManyRoundsInARow) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 5000; ++round) {
    pool.for_ranges(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 500'000);
}

TEST(ThreadPool, RethrowsAnExceptionOfABodyAndStaysUsable) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.for_ranges(1000, 1,
                               [](int64_t begin, int64_t) {
                                 if (begin > 0) throw std::runtime_error("second half");
                               }),
               std::runtime_error);
  std::atomic<int64_t> sum{0};
  pool.for_ranges(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 1000);
}

TEST(ThreadPool, SeveralThreadsMayUseItAtOnce) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  const auto work = [&] {
    for (int round = 0; round < 2000; ++round) {
      pool.for_ranges(64, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(sum, 2 * 2000 * 64);
}

TEST(ThreadPoolDeathTest, AThreadThatCannotStartThrows) {
  if (!kCanLimitMemory) GTEST_SKIP() << "the memory of a process cannot be limited under this sanitizer";
  // The constructor must join the threads that did start.
  EXPECT_EXIT(exit_after_running_in_limited_memory(int64_t{200} << 20, [] { ThreadPool pool(1000); }),
              testing::ExitedWithCode(2), "cannot start a thread for computing: .*; use fewer");
}

}  // namespace
}  // namespace aliquot
