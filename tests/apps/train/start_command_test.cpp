// Starts aliquot train with options that differ between ranks or are invalid, and with a settings file that has control
// characters.
#include <filesystem>
#include <gtest/gtest.h>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

using Words = std::vector<std::string>;

/// Starts one program with two sets of options: rank 0 has `first`, and rank 1 has `second`.
test::CommandResult train_together(const Words& first, const Words& second) {
  Words words = {"mpirun", "--oversubscribe"};
  for (const Words* options : {&first, &second}) {
    const Words program = {"-n",      "1",       test::aliquot_program(),
                           "train",   "--quiet", "--layers",
                           "1",       "--width", "8",
                           "--heads", "1",       "--threads",
                           "1",       "--steps", "3"};
    if (options == &second) words.emplace_back(":");
    words.insert(words.end(), program.begin(), program.end());
    words.insert(words.end(), options->begin(), options->end());
  }
  return test::run_program("/usr/bin/env", words, test::mpirun_environment());
}

TEST(Start, OptionsThatDifferBetweenRanksAreRejected) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const auto expect_refusal = [](const Words& first, const Words& second, const std::string& sentence) {
    const test::CommandResult result = train_together(first, second);
    EXPECT_EQ(result.code, 1) << sentence;
    EXPECT_NE(result.err.find("the options of the ranks differ: rank 0 has " + sentence), std::string::npos)
        << result.err;
  };
  const test::TemporaryDirectory folder;
  const std::string runs = folder.path() / "runs";
  expect_refusal({"--data-seed", "4"}, {"--data-seed", "5"},
                 "--data-seed 4, rank 1 has --data-seed 5; start all ranks with the same options.");
  expect_refusal({"--micro-batch", "2"}, {}, "--micro-batch 2, rank 1 has --micro-batch ");
  expect_refusal({"--checkpoint-dir", runs}, {},
                 "--checkpoint-dir (set), rank 1 has --checkpoint-dir (not set); start");
  const std::string metrics = folder.path() / "m.jsonl", other = folder.path() / "n.jsonl";
  const test::CommandResult accepted =
      train_together({"--metrics", metrics}, {"--metrics", other, "--timeout", "500", "--threads", "2"});
  EXPECT_EQ(accepted.code, 0) << accepted.err;
}

TEST(Start, ErrorsContainNoControlCharactersOfFiles) {
  const test::TemporaryDirectory folder;
  const std::string file = folder.path() / "options";
  for (const char* line : {"layers = \033[31mx\xC2\x9B", "lay\033[31mers = 1", "model = \a/\b.json"}) {
    test::write_file(file, line);
    const test::CommandResult result = test::run_aliquot({"train", "--config", file});
    EXPECT_EQ(result.code, 1);
    for (const char* control : {"\033", "\a", "\b", "\xC2\x9B"})
      EXPECT_EQ(result.err.find(control), std::string::npos) << result.err;
    EXPECT_EQ(result.err.back(), '\n');
  }
}

/// Starts a rank with a usage error, with the variables of mpirun. `job` is the directory of the job on the node.
test::CommandResult start_rank_with_error(int rank, const std::filesystem::path& job) {
  const std::string number = std::to_string(rank), own = job / number;
  return test::run_program(test::aliquot_program(), {"train", "--zero-stage", "7"},
                           {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=" + number, "OMPI_FILE_LOCATION=" + own});
}

/// mpirun may take any time to end the other ranks. They must not repeat the error meanwhile.
TEST(Start, OtherRanksOfTheNodeDoNotRepeatAnErrorThatTheFirstHasReported) {
  const test::TemporaryDirectory job;
  const test::CommandResult first = start_rank_with_error(0, job.path());
  EXPECT_EQ(first.code, 1);
  EXPECT_NE(first.err.find("aliquot: --zero-stage: invalid value '7'"), std::string::npos) << first.err;
  const test::CommandResult other = start_rank_with_error(1, job.path());
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.err, "");
}

/// The script of rank 0 does not fail, so mpirun does not end rank 1.
TEST(Start, MpirunGivesTheRanksOfANodeOneDirectory) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const std::string script =
      "if [ -z \"$OMPI_FILE_LOCATION\" ]; then echo not Open MPI; exit; fi; "
      "if [ $OMPI_COMM_WORLD_RANK = 0 ]; then \"$0\" train --zero-stage 7; sleep 2; exit 0; fi; "
      "\"$0\" train --zero-stage 7; echo rank 1 ended with $?";
  const test::CommandResult result = test::run_program(
      "/usr/bin/env", {"mpirun", "--oversubscribe", "-n", "2", "sh", "-c", script, test::aliquot_program()},
      test::mpirun_environment());
  if (result.out.find("not Open MPI") != std::string::npos) GTEST_SKIP() << "mpirun is not that of Open MPI";
  EXPECT_NE(result.out.find("rank 1 ended with 1"), std::string::npos) << result.out << result.err;
  EXPECT_NE(result.err.find("aliquot: --zero-stage"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("aliquot: rank 1"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace aliquot
