// Starts aliquot train with options that differ between ranks, and with a settings file that has control characters.
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

}  // namespace
}  // namespace aliquot
