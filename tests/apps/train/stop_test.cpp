// Asking a run to stop: by which signal, what it ends with, and what is there afterwards.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <thread>
#include <unistd.h>

#include "apps/sweep/child_process.h"
#include "apps/train/stop_request.h"
#include "checkpoint/checkpoint_directory.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

using namespace std::chrono_literals;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A run of the command, in a directory that goes away.
class Stop : public testing::Test {
 protected:
  std::vector<std::string> train(std::vector<std::string> words) const {
    std::vector<std::string> all = {test::aliquot_program(),
                                    "train",
                                    "--layers",
                                    "1",
                                    "--width",
                                    "32",
                                    "--threads",
                                    "1",
                                    "--metrics",
                                    metrics(),
                                    "--quiet"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  std::string metrics() const { return (directory_.path() / "run.jsonl").string(); }
  std::string said() const { return contents(directory_.path() / "said.txt"); }
  std::string checkpoints() const { return (directory_.path() / "checkpoints").string(); }

  /// What a run ends with that is sent `signal` in its third step.
  ExitStatus stopped(const std::vector<std::string>& words, int signal) const {
    ChildProcess child(words, directory_.path() / "said.txt");
    for (int i = 0; i < 6000 && contents(metrics()).find("\"step\":2") == std::string::npos; ++i) {
      if (child.wait_for_exit(0.01)) break;
    }
    child.send(signal);
    EXPECT_TRUE(child.wait_for_exit(60)) << said();
    return child.exit_status();
  }

  test::TemporaryDirectory directory_;
};

TEST_F(Stop, WithNowhereToSaveItEndsAsTheSignalWould) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    const ExitStatus exit_status = stopped(train({"--ranks", "2", "--steps", "1000000"}), signal);
    EXPECT_EQ(exit_status.code, 128 + signal) << said();
    EXPECT_NE(said().find("nothing is saved, since there is no --checkpoint-dir"), std::string::npos) << said();
    EXPECT_NE(said().find("digest "), std::string::npos) << said();
    std::filesystem::remove(metrics());
  }
}

/// Ctrl-C in `aliquot train | tee log` ends both: nobody reads any more when the run is asked.
TEST_F(Stop, ThatWhoeverReadTheOutputWentTooLosesNothing) {
  std::string words;
  for (const std::string& word :
       train({"--steps", "1000000", "--progress", "lines", "--checkpoint-dir", checkpoints()})) {
    if (word != "--quiet") words += " '" + word + "'";
  }
  const std::string folder = directory_.path().string();
  const std::string line =
      "cd '" + folder + "'; ( sh -c 'echo $$ >pid; exec \"$@\"' run" + words + " 2>&1; echo $? >code ) | head -n 4";
  ChildProcess shell({"/bin/sh", "-c", line}, directory_.path() / "said.txt");
  for (int i = 0; i < 6000 && contents(metrics()).find("\"step\":20,") == std::string::npos; ++i)
    std::this_thread::sleep_for(10ms);
  const std::string process = contents(directory_.path() / "pid");
  ASSERT_FALSE(process.empty()) << said();
  kill(std::stoi(process), SIGINT);
  EXPECT_TRUE(shell.wait_for_exit(60)) << said();
  EXPECT_EQ(contents(directory_.path() / "code"), "75\n");
  EXPECT_FALSE(list_checkpoints(checkpoints()).empty());
}

TEST_F(Stop, SavedItSaysStartMeAgainAndGoesOnAsIfItHadNotStopped) {
  const std::vector<std::string> words = {"--ranks", "2", "--schedule", "constant", "--checkpoint-dir", checkpoints()};
  const auto with = [&words](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  EXPECT_EQ(stopped(train(with({"--steps", "1000000"})), SIGTERM).code, 75) << said();
  EXPECT_EQ(said().find("nothing is saved"), std::string::npos);
  const std::string record = contents(metrics());
  const size_t last = record.rfind("{\"step\":");
  const int64_t step = std::stoll(record.substr(last + 8));
  const std::string more = std::to_string(step + 3);
  ChildProcess resumed(train(with({"--steps", more, "--resume", "auto"})), directory_.path() / "resumed.txt");
  ASSERT_TRUE(resumed.wait_for_exit(60));
  ChildProcess whole(train({"--ranks", "2", "--schedule", "constant", "--steps", more}),
                     directory_.path() / "whole.txt");
  ASSERT_TRUE(whole.wait_for_exit(60));
  EXPECT_EQ(contents(directory_.path() / "resumed.txt"), contents(directory_.path() / "whole.txt"));
}

TEST_F(Stop, ASecondSignalEndsItAtOnce) {
  // One step of it takes a minute.
  ChildProcess child(train({"--accumulate", "50000", "--steps", "2"}), directory_.path() / "said.txt");
  for (int i = 0; i < 6000 && contents(metrics()).empty(); ++i) ASSERT_FALSE(child.wait_for_exit(0.01)) << said();
  child.send(SIGTERM);
  EXPECT_FALSE(child.wait_for_exit(0.3));
  child.send(SIGTERM);
  EXPECT_TRUE(child.wait_for_exit(20));
  EXPECT_EQ(child.exit_status().code, 128 + SIGTERM);
}

/// No handler runs on the stack of a thread that computes. A model's generated code may keep values below the stack pointer
/// (oneDNN 2.6 does), and a handler would overwrite them.
TEST(StopRequest, InterruptsNoThreadThatComputes) {
  EXPECT_EXIT(
      {
        install_stop_handlers(StartedBy::kItself);
        int blocked = 0;
        std::thread([&blocked] {
          sigset_t mask;
          pthread_sigmask(SIG_BLOCK, nullptr, &mask);
          for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) blocked += sigismember(&mask, signal);
        }).join();
        struct sigaction action = {};
        sigaction(SIGTERM, nullptr, &action);
        kill(getpid(), SIGTERM);
        while (!stop_requested()) std::this_thread::sleep_for(1ms);
        _exit(blocked == 4 && action.sa_handler == SIG_DFL && stop_signal() == SIGTERM ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

/// Who passes a signal on does not know whether the ranks were sent it too.
TEST_F(Stop, AskedTwiceBySigusr1ItSavesAllTheSame) {
  ChildProcess child(train({"--ranks", "2", "--steps", "1000000", "--checkpoint-dir", checkpoints()}),
                     directory_.path() / "said.txt");
  for (int i = 0; i < 6000 && contents(metrics()).empty(); ++i) ASSERT_FALSE(child.wait_for_exit(0.01)) << said();
  child.send(SIGTERM);
  for (int i = 0; i < 3; ++i) child.send(SIGUSR1);
  EXPECT_TRUE(child.wait_for_exit(60));
  EXPECT_EQ(child.exit_status().code, 75) << said();
}

/// Slurm's srun leaves its tasks time to save after SIGTERM, and mpirun none.
TEST(StopRequest, BySigtermIsOneUnderSrunAndTheEndUnderMpirun) {
  const auto terminated = [](StartedBy by) {
    install_stop_handlers(by);
    kill(getpid(), SIGTERM);
    while (!stop_requested()) std::this_thread::sleep_for(1ms);
    std::_Exit(0);
  };
  EXPECT_EXIT(terminated(StartedBy::kSrun), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(terminated(StartedBy::kMpirun), testing::KilledBySignal(SIGTERM), "");
}

TEST_F(Stop, MpirunPassesTheUsersSignalOn) {
  if (!test::has_mpi()) GTEST_SKIP() << "no mpirun here, or a build without MPI";
  std::vector<std::string> words = train({"--steps", "1000000", "--checkpoint-dir", checkpoints()});
  words.insert(words.begin(), {"mpirun", "--oversubscribe", "-n", "2"});
  const std::vector<std::string> variables = test::mpirun_environment();
  words.insert(words.begin(), variables.begin(), variables.end());
  words.insert(words.begin(), "/usr/bin/env");
  for (int i = 0; i < 4; ++i) {  // a signal in the middle of a matrix product is a matter of luck
    EXPECT_EQ(stopped(words, SIGUSR1).code, 75) << said();
    std::filesystem::remove_all(checkpoints());
    std::filesystem::remove(metrics());
  }
}

}  // namespace
}  // namespace aliquot
