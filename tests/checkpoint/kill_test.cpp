// SIGKILL at a random moment of a run that saves again and again. ALIQUOT_KILLS says how often (100).
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <iostream>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/file_system.h"
#include "checkpoint/find.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

/// Saves step after step from two ranks and tells each one it was promised, until it is killed.
[[noreturn]] void save_for_ever(const std::filesystem::path& directory, int64_t step, int acknowledge) {
  test::on_ranks(2, [&](Communicator& communicator) {
    test::Shard shard(test::small_tensors(), 2, communicator.rank(), test::Cut::kBlocks, 1);
    shard.fill(1);
    SaveOptions options;
    options.keep_count = 3;
    for (int64_t next = step;; ++next) {
      shard.state().step = next;
      save(shard.state(), communicator, directory, options);
      if (communicator.rank() == 0 && ::write(acknowledge, &next, sizeof next) != sizeof next) ::_exit(2);
    }
  });
  ::_exit(1);
}

int64_t last_acknowledged(int pipe, int64_t before) {
  int64_t step = before, next = 0;
  while (::read(pipe, &next, sizeof next) == sizeof next) step = next;
  return step;
}

TEST(Kill, NothingThatWasAcknowledgedIsLostAndNothingHalfIsSeen) {
  const char* wanted = std::getenv("ALIQUOT_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 100;
  test::TemporaryDirectory directory;
  std::mt19937 random(std::random_device{}());
  int64_t acknowledged = 0;
  int in_mid_save = 0;
  for (int kill = 0; kill < kills; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(directory.path(), acknowledged + 1, ends[1]);
    ::close(ends[1]);
    ::usleep(static_cast<useconds_t>(random() % 60'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    acknowledged = last_acknowledged(ends[0], acknowledged);
    ::close(ends[0]);
    in_mid_save += sweep_leftovers(directory.path()).empty() ? 0 : 1;
    for (const FoundCheckpoint& found : list_checkpoints(directory.path())) ASSERT_NO_THROW(verify(found.path));
    const auto newest = newest_valid(directory.path()).found;
    if (acknowledged == 0) continue;
    ASSERT_TRUE(newest.has_value());
    ASSERT_GE(newest->step, acknowledged);
    acknowledged = newest->step;
  }
  std::cout << kills << " kills, " << in_mid_save << " with a save half done, " << acknowledged
            << " checkpoints written, none lost\n";
}

}  // namespace
}  // namespace aliquot
