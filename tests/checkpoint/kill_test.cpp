// Kills a run that saves repeatedly, with SIGKILL at random moments. ALIQUOT_KILLS is the number of kills, 100 by
// default; scripts/kill.sh adds up the kills of several runs.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <iostream>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/background_saver.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "kernels/system/file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

constexpr int64_t kReady = -1;

enum class SaveMode { kBlocking, kBackground };

/// Saves consecutive steps from two ranks until the process is killed. Writes each completed step to the pipe
/// `acknowledge`.
[[noreturn]] void save_until_killed(SaveMode mode, const std::filesystem::path& directory, int64_t step,
                                    int acknowledge) {
  test::on_ranks(2, [&](Communicator& communicator) {
    test::Shard shard(test::small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    shard.fill(1);
    SaveOptions options;
    options.keep_count = 3;
    BackgroundSaver saver(communicator, snapshot_bytes(shard.state()), nullptr);
    const auto report = [&](int64_t what) {
      if (communicator.rank() == 0 && ::write(acknowledge, &what, sizeof what) != sizeof what) ::_exit(2);
    };
    report(kReady);
    for (int64_t next = step;; ++next) {
      shard.state().step = next;
      if (mode == SaveMode::kBlocking) {
        save(shard.state(), communicator, directory, options);
      } else {
        saver.start(shard.state(), directory, options);
        for (int i = 0; i < 20; ++i) communicator.gather_objects("training continues");
        saver.collect();
      }
      report(next);
    }
  });
  ::_exit(1);
}

/// Returns the duration of a save on this machine, from which the test derives the moments of the kills.
uint32_t save_microseconds() {
  test::TemporaryDirectory directory;
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < 3; ++step) test::save_test_state(directory.path(), test::small_tensors(), 1, step, 2);
  const auto taken = std::chrono::steady_clock::now() - begun;
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(taken).count() / 3) + 1;
}

int64_t last_acknowledged(int pipe, int64_t before) {
  int64_t step = before, next = 0;
  while (::read(pipe, &next, sizeof next) == sizeof next) step = next;
  return step;
}

class Kill : public testing::TestWithParam<SaveMode> {};

TEST_P(Kill, AcknowledgedSavesSurviveAndPartialSavesAreNotVisible) {
  const char* wanted = std::getenv("ALIQUOT_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 100;
  test::TemporaryDirectory directory;
  std::mt19937 random(std::random_device{}());
  int64_t acknowledged = 0;
  int interrupted_saves = 0;
  const uint32_t window_us = 4 * save_microseconds();
  for (int kill = 0; kill < kills; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(GetParam(), directory.path(), acknowledged + 1, ends[1]);
    ::close(ends[1]);
    int64_t ready = 0;
    ASSERT_EQ(::read(ends[0], &ready, sizeof ready), static_cast<ssize_t>(sizeof ready));
    ::usleep(static_cast<useconds_t>(random() % window_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    acknowledged = last_acknowledged(ends[0], acknowledged);
    ::close(ends[0]);
    interrupted_saves += sweep_leftovers(directory.path()).empty() ? 0 : 1;
    for (const FoundCheckpoint& found : list_checkpoints(directory.path()))
      ASSERT_NO_THROW(verify_checkpoint(found.path));
    const auto newest = find_newest_valid(directory.path()).found;
    if (acknowledged == 0) continue;
    ASSERT_TRUE(newest.has_value());
    ASSERT_GE(newest->step, acknowledged);
    acknowledged = newest->step;
  }
  std::cout << kills << " kills, " << interrupted_saves << " during a save, " << acknowledged
            << " checkpoints written, none lost\n";
  if (kills < 50) return;
  EXPECT_GT(interrupted_saves, 0) << "no kill interrupted a save";
  EXPECT_GT(acknowledged, 0) << "no save completed before a kill";
}

INSTANTIATE_TEST_SUITE_P(SaveModes, Kill, testing::Values(SaveMode::kBlocking, SaveMode::kBackground),
                         [](const auto& each) {
                           return each.param == SaveMode::kBlocking ? "Blocking" : "Background";
                         });

}  // namespace
}  // namespace aliquot
