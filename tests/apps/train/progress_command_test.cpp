// Runs aliquot train on a terminal, in a pipe, and under mpirun, and checks what it prints.
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using Words = std::vector<std::string>;

Words train(const Words& more, const char* steps = "12") {
  Words words = {"train", "--layers",  "1", "--width",  "16",   "--heads", "2",  "--context", "16", "--micro-batch",
                 "1",     "--threads", "1", "--device", "host", "--steps", steps};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The numbers of the steps that have a line.
std::vector<int> steps_in(const std::string& text) {
  std::vector<int> steps;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step ")) steps.push_back(std::stoi(line.substr(5)));
  }
  return steps;
}

bool has_bar(const std::string& text) { return text.find("\x1b[K") != std::string::npos; }

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TrainOutput, ABannerSaysWhatTheRunDoes) {
  const test::TemporaryDirectory folder;
  const std::string data = folder.path() / "text";
  test::write_file(data, std::string(4096, 'a'));
  const test::CommandResult result = test::run_aliquot(
      train({"--ranks", "2", "--accumulate", "2", "--zero-stage", "2", "--data", data, "--memory-budget", "20MiB"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string banner = result.out.substr(0, result.out.find("\nstep 1/") + 1);
  for (const std::string& part :
       {std::string("model      gpt2-nano, 7.66k parameters; 1 layer, width 16, vocabulary 256\n"),
        std::string("ranks      2 ranks (threads, "), std::string("; ZeRO stage 2\n"),
        std::string("precision  float32, gradients float32\n"),
        std::string("optimizer  adamw, learning rate 0.0003, cosine\n"),
        std::string("batch      64 tokens a step: 1 sequence of 16 tokens x 2 micro-batches x 2 ranks\n"),
        "data       " + data + ", 4096 tokens; 12 steps are 0.19 epochs\n", std::string("memory     "),
        std::string(" planned for a rank, of a budget of 20.0 MiB\n"), std::string("chosen     nothing recomputed: ")})
    EXPECT_NE(banner.find(part), std::string::npos) << part << "\n" << banner;
  EXPECT_EQ(test::run_aliquot(train({"--quiet"})).out.find("model"), std::string::npos);
}

TEST(TrainOutput, LogEveryAndMetricsEveryThinTheLines) {
  const test::TemporaryDirectory folder;
  const std::string metrics = folder.path() / "run.jsonl", data = folder.path() / "text";
  test::write_file(data, std::string(4096, 'a'));
  EXPECT_EQ(steps_in(test::run_aliquot(train({})).out).size(), 12u);
  EXPECT_EQ(steps_in(test::run_aliquot(train({"--log-every", "5"})).out), (std::vector<int>{5, 10, 12}));
  const test::CommandResult result =
      test::run_aliquot(train({"--ranks", "2", "--metrics", metrics, "--metrics-every", "4", "--digest-every", "6",
                               "--eval-data", data, "--eval-every", "7"}));
  ASSERT_EQ(result.code, 0) << result.err;
  std::ifstream file(metrics);
  std::vector<int> recorded;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss")) recorded.push_back(json["step"]);
  }
  EXPECT_EQ(recorded, (std::vector<int>{4, 6, 7, 8, 12}));
  EXPECT_EQ(test::run_aliquot(train({"--log-every", "0"})).code, 1);
}

/// About 100 lines after the first ten, if ten seconds do not pass.
TEST(TrainOutput, LinesOfManyStepsAreThinned) {
  const std::vector<int> steps = steps_in(test::run_aliquot(train({}, "1000")).out);
  EXPECT_GE(steps.size(), 109u);
  EXPECT_LE(steps.size(), 150u);
  EXPECT_EQ(steps.back(), 1000);
}

TEST(TrainOutput, StopAfterSaysHowToContinue) {
  const test::TemporaryDirectory folder;
  const std::string saved = folder.path() / "saved";
  const test::CommandResult result = test::run_aliquot(train({"--checkpoint-dir", saved, "--stop-after", "3"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("\nsaved step 3 in " + saved + "; continue with --resume auto\n"), std::string::npos)
      << result.out;
  const test::CommandResult rest = test::run_aliquot(train({"--checkpoint-dir", saved, "--resume", "auto"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(rest.out.find("continue with"), std::string::npos) << rest.out;
  EXPECT_EQ(test::run_aliquot(train({"--stop-after", "3"})).out.find("saved step"), std::string::npos);
}

TEST(TrainOutput, ATerminalHasABar) {
  const test::CommandResult result = test::run_on_terminal(test::aliquot_program(), train({}), 100);
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_TRUE(has_bar(result.out)) << result.out;
  EXPECT_NE(result.out.find("] 12/12  loss "), std::string::npos) << result.out;
  EXPECT_TRUE(steps_in(result.out).empty()) << result.out;
  EXPECT_FALSE(has_bar(test::run_aliquot(train({})).out));
}

class UnderMpirun : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  }
  /// A command of a shell that runs two ranks.
  static std::string command(const Words& words) {
    std::string line = "mpirun --oversubscribe -n 2 '" + test::aliquot_program() + "'";
    for (const std::string& word : words) line += " '" + word + "'";
    return line;
  }
};

/// mpirun gives the ranks a terminal as standard output, whatever its own standard output is.
TEST_F(UnderMpirun, OnlyATerminalHasABar) {
  const test::TemporaryDirectory folder;
  const std::string output = folder.path() / "output";
  const Words environment = test::mpirun_environment();
  for (const std::string& to : {">'" + output + "'", "| cat >'" + output + "'"}) {
    const Words shell = {"-c", command(train({})) + " " + to};
    EXPECT_EQ(test::run_on_terminal("/bin/sh", shell, 100, environment).code, 0);
    EXPECT_FALSE(has_bar(contents(output))) << contents(output);
    EXPECT_EQ(steps_in(contents(output)).size(), 12u) << contents(output);
  }
  const test::CommandResult shown = test::run_on_terminal("/bin/sh", {"-c", command(train({}))}, 100, environment);
  EXPECT_TRUE(has_bar(shown.out)) << shown.out;
  EXPECT_TRUE(steps_in(shown.out).empty()) << shown.out;
}

TEST_F(UnderMpirun, ErrorsOfAllRanksAreReportedOnce) {
  struct Case {
    Words words;
    std::string sentence;
    int code;
  };
  for (const Case& one : {Case{{"train", "--zero-stge", "2"}, "unknown option --zero-stge", 1},
                          {{"trian"}, "unknown command 'trian'", 1},
                          {train({"--ranks", "3"}), "but the launcher started 2 ranks", 1},
                          {train({"--heads", "3"}), "is not a multiple of --heads 3", 1},
                          {train({"--data", "/no/file"}), "--data /no/file: No such file", 1},
                          {train({"--resume", "/no/run"}), "found no checkpoint at /no/run", 5}}) {
    const test::CommandResult result =
        test::run_program("/bin/sh", {"-c", command(one.words)}, test::mpirun_environment());
    EXPECT_EQ(result.code, one.code) << result.err;
    EXPECT_EQ(count(result.err, one.sentence), 1) << result.err;
  }
  const test::CommandResult help =
      test::run_program("/bin/sh", {"-c", command({"plan", "--help"})}, test::mpirun_environment());
  EXPECT_EQ(count(help.out, "\nExit codes\n"), 1) << help.out;
}

/// Only rank 1 has the error, so it must report it, and soon: the first rank will not.
TEST_F(UnderMpirun, AnErrorOfOneRankIsReported) {
  const auto began = std::chrono::steady_clock::now();
  const std::string quoted = "'" + test::aliquot_program() + "' train --steps 1";
  const test::CommandResult result = test::run_program(
      "/bin/sh", {"-c", "mpirun --oversubscribe -n 1 " + quoted + " : -n 1 " + quoted + " --data /no/file"},
      test::mpirun_environment());
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_NE(result.err.find("rank 1: --data /no/file: No such file"), std::string::npos) << result.err;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  EXPECT_LT(taken.count(), 20 * test::test_time_scale());
}

}  // namespace
}  // namespace aliquot
