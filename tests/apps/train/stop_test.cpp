// Sends stop signals to runs and checks exit codes, messages and checkpoints.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <sys/stat.h>
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

/// Runs the command in a temporary directory.
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
  std::string output() const { return contents(directory_.path() / "output.txt"); }
  std::string checkpoints() const { return (directory_.path() / "checkpoints").string(); }

  /// Starts the command, sends `signal` after its second step and returns its exit status.
  ExitStatus stopped(const std::vector<std::string>& words, int signal) const {
    ChildProcess child(words, directory_.path() / "output.txt");
    for (int i = 0; i < 6000 && contents(metrics()).find("\"step\":2") == std::string::npos; ++i) {
      if (child.wait_for_exit(0.01)) break;
    }
    child.send(signal);
    EXPECT_TRUE(child.wait_for_exit(60)) << output();
    return child.exit_status();
  }

  test::TemporaryDirectory directory_;
};

/// The command reads its options from a pipe, so the signal arrives before training.
TEST_F(Stop, ASignalDuringTheStartIsNotLost) {
  const std::string pipe = directory_.path() / "options";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ChildProcess child(train({"--config", pipe, "--checkpoint-dir", checkpoints(), "--steps", "1000000"}),
                     directory_.path() / "output.txt");
  {
    std::ofstream options(pipe);  // waits until the command opens the pipe
    child.send(SIGUSR1);
    options << "layers = 1\n";
  }
  EXPECT_TRUE(child.wait_for_exit(60)) << output();
  EXPECT_EQ(child.exit_status().code, 75) << output();
}

TEST_F(Stop, WithoutACheckpointDirectoryItExitsWithTheCodeOfTheSignal) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    const ExitStatus exit_status = stopped(train({"--ranks", "2", "--steps", "1000000"}), signal);
    EXPECT_EQ(exit_status.code, 128 + signal) << output();
    EXPECT_NE(output().find("nothing was saved, because --checkpoint-dir is not set"), std::string::npos) << output();
    EXPECT_NE(output().find("digest "), std::string::npos) << output();
    std::filesystem::remove(metrics());
  }
}

/// Ctrl-C in `aliquot train | tee log` also ends the reader of the output. The run must save nevertheless.
TEST_F(Stop, SavesAlsoIfTheReaderOfItsOutputHasExited) {
  std::string words;
  for (const std::string& word :
       train({"--steps", "1000000", "--progress", "lines", "--checkpoint-dir", checkpoints()})) {
    if (word != "--quiet") words += " '" + word + "'";
  }
  const std::string folder = directory_.path().string();
  const std::string line =
      "cd '" + folder + "'; ( sh -c 'echo $$ >pid; exec \"$@\"' run" + words + " 2>&1; echo $? >code ) | head -n 4";
  ChildProcess shell({"/bin/sh", "-c", line}, directory_.path() / "output.txt");
  for (int i = 0; i < 6000 && contents(metrics()).find("\"step\":20,") == std::string::npos; ++i)
    std::this_thread::sleep_for(10ms);
  const std::string process = contents(directory_.path() / "pid");
  ASSERT_FALSE(process.empty()) << output();
  kill(std::stoi(process), SIGINT);
  EXPECT_TRUE(shell.wait_for_exit(60)) << output();
  EXPECT_EQ(contents(directory_.path() / "code"), "75\n");
  EXPECT_FALSE(list_checkpoints(checkpoints()).empty());
}

TEST_F(Stop, SavesExitsWith75AndResumes) {
  const std::vector<std::string> words = {"--ranks", "2", "--schedule", "constant", "--checkpoint-dir", checkpoints()};
  const auto with = [&words](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  EXPECT_EQ(stopped(train(with({"--steps", "1000000"})), SIGTERM).code, 75) << output();
  EXPECT_EQ(output().find("nothing was saved"), std::string::npos);
  const int64_t saved = list_checkpoints(checkpoints()).back().step;
  EXPECT_NE(output().find("aliquot: saved step " + std::to_string(saved) + " in " + checkpoints() +
                          "; continue with --resume auto\n"),
            std::string::npos)
      << output();
  const std::string record = contents(metrics());
  const size_t last = record.rfind("{\"step\":");
  const int64_t step = std::stoll(record.substr(last + 8));
  const std::string more = std::to_string(step + 3);
  ChildProcess resumed(train(with({"--steps", more, "--resume", "auto"})), directory_.path() / "resumed.txt");
  ASSERT_TRUE(resumed.wait_for_exit(60));
  ChildProcess uninterrupted(train({"--ranks", "2", "--schedule", "constant", "--steps", more}),
                             directory_.path() / "uninterrupted.txt");
  ASSERT_TRUE(uninterrupted.wait_for_exit(60));
  EXPECT_EQ(contents(directory_.path() / "resumed.txt"), contents(directory_.path() / "uninterrupted.txt"));
}

TEST_F(Stop, ASecondSignalEndsItAtOnce) {
  // One step takes about a minute.
  ChildProcess child(train({"--accumulate", "50000", "--steps", "2"}), directory_.path() / "output.txt");
  for (int i = 0; i < 6000 && contents(metrics()).empty(); ++i) ASSERT_FALSE(child.wait_for_exit(0.01)) << output();
  child.send(SIGTERM);
  EXPECT_FALSE(child.wait_for_exit(0.3));
  child.send(SIGTERM);
  EXPECT_TRUE(child.wait_for_exit(20));
  EXPECT_EQ(child.exit_status().code, 128 + SIGTERM);
}

/// No handler runs on the stack of a thread that computes. A model's generated code may keep values below the stack
/// pointer (oneDNN 2.6 does), and a handler would overwrite them.
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

/// A supervisor may forward a signal that the ranks also received directly, so a repeated signal must not kill them.
TEST_F(Stop, RepeatedSigusr1StillSaves) {
  ChildProcess child(train({"--ranks", "2", "--steps", "1000000", "--checkpoint-dir", checkpoints()}),
                     directory_.path() / "output.txt");
  for (int i = 0; i < 6000 && contents(metrics()).empty(); ++i) ASSERT_FALSE(child.wait_for_exit(0.01)) << output();
  child.send(SIGTERM);
  for (int i = 0; i < 3; ++i) child.send(SIGUSR1);
  EXPECT_TRUE(child.wait_for_exit(60));
  EXPECT_EQ(child.exit_status().code, 75) << output();
}

/// After SIGTERM, Slurm's srun gives its tasks time to save. mpirun does not.
TEST(StopRequest, SigtermRequestsAStopUnderSrunAndKillsUnderMpirun) {
  const auto terminated = [](StartedBy by) {
    install_stop_handlers(by);
    kill(getpid(), SIGTERM);
    while (!stop_requested()) std::this_thread::sleep_for(1ms);
    std::_Exit(0);
  };
  EXPECT_EXIT(terminated(StartedBy::kSrun), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(terminated(StartedBy::kMpirun), testing::KilledBySignal(SIGTERM), "");
}

TEST_F(Stop, MpirunForwardsSigusr1) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  std::vector<std::string> words = train({"--steps", "1000000", "--checkpoint-dir", checkpoints()});
  words.insert(words.begin(), {"mpirun", "--oversubscribe", "-n", "2"});
  const std::vector<std::string> variables = test::mpirun_environment();
  words.insert(words.begin(), variables.begin(), variables.end());
  words.insert(words.begin(), "/usr/bin/env");
  for (int i = 0; i < 4; ++i) {  // repeated, because the signal should sometimes arrive during a matrix product
    EXPECT_EQ(stopped(words, SIGUSR1).code, 75) << output();
    std::filesystem::remove_all(checkpoints());
    std::filesystem::remove(metrics());
  }
}

}  // namespace
}  // namespace aliquot
