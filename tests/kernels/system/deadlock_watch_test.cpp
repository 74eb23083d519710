// Tests that a deadlock of the threads of all ranks is found, and that no other wait is taken for one.
#include "kernels/system/deadlock_watch.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <thread>

namespace aliquot {
namespace {

constexpr std::chrono::milliseconds kPause{1};

class DeadlockWatchTest : public testing::Test {
 protected:
  /// Polls until a thread has found a deadlock, or until ends_ is true.
  void wait(const std::string& name) {
    DeadlockWatch watch;
    while (!ends_) {
      const std::string found = watch.poll([name] { return name; });
      if (!found.empty() && !ends_.exchange(true)) found_ = found;
      std::this_thread::sleep_for(kPause);
    }
  }
  /// Runs `rank_1` on a new thread, and `rank_0` on the calling one. Returns the deadlock that was found, or "".
  std::string run(const std::function<void()>& rank_0, const std::function<void()>& rank_1) {
    std::thread other([&] {
      const RankThreads::Own own(&threads_, 1);
      rank_1();
    });
    {
      const RankThreads::Own own(&threads_, 0);
      rank_0();
    }
    other.join();
    return found_;
  }

  RankThreads threads_{2};
  std::atomic<bool> ends_{false};
  std::string found_;
};

TEST_F(DeadlockWatchTest, FindsThatAllRanksWait) {
  EXPECT_EQ(
      run([&] { wait("in a"); }, [&] { wait("in b"); }),
      "no rank can continue: rank 0 waits in a, rank 1 waits in b: all ranks must make the same calls in the same "
      "order");
}

TEST_F(DeadlockWatchTest, ARankThatRunsIsNoDeadlock) {
  const auto compute = [&] {
    std::this_thread::sleep_for(100 * kPause);
    ends_ = true;
  };
  EXPECT_EQ(run([&] { wait("in a"); }, compute), "");
}

/// Before a rank has joined, and after it has left, the others may wait for it.
TEST_F(DeadlockWatchTest, AnAbsentRankIsNoDeadlock) {
  std::thread stop([&] {
    std::this_thread::sleep_for(100 * kPause);
    ends_ = true;
  });
  EXPECT_EQ(run([&] { wait("in a"); }, [] {}), "");
  stop.join();
}

/// A rank that begins another wait has made progress, however often the others have checked theirs.
TEST_F(DeadlockWatchTest, ShortWaitsAreNoDeadlock) {
  const auto short_waits = [&] {
    for (int i = 0; i < 2000; ++i) {
      DeadlockWatch watch;
      EXPECT_EQ(watch.poll([] { return std::string("in b"); }), "");
    }
    ends_ = true;
  };
  EXPECT_EQ(run([&] { wait("in a"); }, short_waits), "");
}

/// A worker with a task counts as running unless it waits. If a rank's own thread has no text, that of its worker is
/// shown.
TEST_F(DeadlockWatchTest, AWorkerThatWaitsIsNamed) {
  SharedCounter submitted, completed;
  submitted.raise_to(1);
  const auto rank_1 = [&] {
    const RankThreads::Worker worker(submitted, completed);
    std::thread thread([&] {
      worker.enter();
      std::this_thread::sleep_for(100 * kPause);
      EXPECT_FALSE(ends_) << "the task of the worker still runs";
      wait("in the worker");
    });
    wait("");
    thread.join();
  };
  const std::string found = run([&] { wait("in a"); }, rank_1);
  EXPECT_NE(found.find("rank 0 waits in a, rank 1 waits in the worker:"), std::string::npos) << found;
}

TEST_F(DeadlockWatchTest, AWorkerWithoutTasksWaits) {
  SharedCounter submitted, completed;
  submitted.raise_to(3);
  completed.raise_to(3);
  const auto rank_1 = [&] {
    const RankThreads::Worker worker(submitted, completed);
    wait("in b");
  };
  EXPECT_NE(run([&] { wait("in a"); }, rank_1), "");
}

TEST(DeadlockWatch, HasNoEffectInOtherThreads) {
  DeadlockWatch watch;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(watch.poll([] { return std::string("in a"); }), "");
}

}  // namespace
}  // namespace aliquot
