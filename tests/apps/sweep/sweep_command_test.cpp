// Runs aliquot sweep and checks its table, its picture and its exit codes.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <sstream>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>

#include "apps/sweep/child_process.h"
#include "kernels/system/error.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/fail_system_call.h"
#include "tests/support/well_formed.h"

namespace aliquot {
namespace {

using test::CommandResult;
using Row = std::map<std::string, std::string>;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

std::vector<Row> table(const std::filesystem::path& directory) {
  std::istringstream file(contents(directory / "sweep.csv"));
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = cells(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> values = cells(line);
    EXPECT_EQ(values.size(), names.size()) << line;
    for (size_t i = 0; i < names.size() && i < values.size(); ++i) {
      if (i == 0) rows.emplace_back();
      rows.back()[names[i]] = values[i];
    }
  }
  return rows;
}

CommandResult sweep(const std::filesystem::path& out, std::vector<std::string> words) {
  words.insert(words.begin(), {"sweep", "--out", out.string(), "--layers", "1", "--width", "32", "--threads", "1"});
  return test::run_aliquot(words);
}

void expect_measured(const Row& row) {
  EXPECT_EQ(row.at("status"), "ok") << row.at("reason");
  EXPECT_EQ(row.at("planned_peak"), row.at("measured_peak"));
  EXPECT_GT(std::stoll(row.at("measured_peak")), 0);
  EXPECT_GT(std::stoll(row.at("system_bytes")), std::stoll(row.at("measured_peak")) / 2);
  EXPECT_GT(std::stod(row.at("tokens_per_second")), 0);
  EXPECT_EQ(row.at("device"), "host");
}

TEST(Sweep, PlannedEqualsMeasuredInEveryRow) {
  test::TemporaryDirectory directory;
  const CommandResult result = sweep(directory.path(), {"--ranks", "1,2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("planned and measured memory are equal to the byte in 8 of them"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("8/8  gpt2-nano   ZeRO stage 3   2 ranks  planned"), std::string::npos) << result.out;
  const std::vector<Row> rows = table(directory.path());
  ASSERT_EQ(rows.size(), 8u);
  for (const Row& row : rows) expect_measured(row);
  // On 2 ranks, ZeRO stage 0 uses more memory than ZeRO stage 3.
  EXPECT_GT(std::stoll(rows[4].at("measured_peak")), std::stoll(rows[7].at("measured_peak")));
  EXPECT_EQ(test::xml_problem(contents(directory.path() / "memory.svg")), "");
}

TEST(Sweep, EveryModelFamilyIsMeasured) {
  test::TemporaryDirectory directory;
  const CommandResult result =
      sweep(directory.path(), {"--models", "gpt2-nano,llama-nano", "--stages", "3", "--ranks", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::vector<Row> rows = table(directory.path());
  ASSERT_EQ(rows.size(), 2u);
  for (const Row& row : rows) expect_measured(row);
  EXPECT_NE(rows[0].at("parameters"), rows[1].at("parameters"));
}

TEST(Sweep, ARejectedRunHasARow) {
  test::TemporaryDirectory directory;
  const CommandResult result =
      sweep(directory.path(), {"--models", "gpt2-nano", "--stages", "3", "--ranks", "1,3", "--global-batch", "4"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::vector<Row> rows = table(directory.path());
  ASSERT_EQ(rows.size(), 2u);
  expect_measured(rows[0]);
  EXPECT_EQ(rows[1].at("status"), "refused");
  EXPECT_NE(rows[1].at("reason").find("--global-batch 4 is not a multiple of 3 ranks"), std::string::npos)
      << rows[1].at("reason");
  EXPECT_EQ(rows[1].at("measured_peak"), "");
}

TEST(Sweep, AModelThatDoesNotFitIsPlannedOnly) {
  test::TemporaryDirectory directory;
  const CommandResult result =
      test::run_aliquot({"sweep", "--out", directory.path().string(), "--stages", "0", "--ranks", "2", "--width",
                         "102400", "--heads", "8", "--threads", "1"});  // a model with 14 TB of state
  EXPECT_EQ(result.code, 2) << result.err;                              // no run was measured
  EXPECT_NE(result.err.find("no run of the sweep was measured"), std::string::npos) << result.err;
  const std::vector<Row> rows = table(directory.path());
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("status"), "does not fit") << rows[0].at("reason");
  EXPECT_GT(std::stoll(rows[0].at("planned_peak")), int64_t{1} << 42);
  EXPECT_NE(contents(directory.path() / "memory.svg").find("does not fit"), std::string::npos);
}

TEST(Sweep, LauncherStartsTheRuns) {
  test::TemporaryDirectory directory;
  // `env` replaces a launcher: it runs the command with additional environment variables.
  const CommandResult result =
      sweep(directory.path(), {"--ranks", "1", "--stages", "0", "--launcher", "env 'ALIQUOT_TEST=a b' ranks={ranks}"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_measured(table(directory.path()).at(0));
  const CommandResult none = sweep(directory.path(), {"--ranks", "1", "--stages", "0", "--launcher", "/no/launcher"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(table(directory.path()).at(0).at("status"), "exit 127");
  EXPECT_NE(table(directory.path()).at(0).at("reason").find("/no/launcher"), std::string::npos);
}

TEST(Sweep, InvalidUsePrintsOneLineAndExitsWith1) {
  test::TemporaryDirectory directory;
  for (const std::vector<std::string>& words : {std::vector<std::string>{"sweep", "--models", "gpt3"},
                                                {"sweep", "--out", "/proc/none"},
                                                {"sweep", "--heads", "3"},
                                                {"sweep", "nano"}}) {
    std::vector<std::string> all = words;
    if (words[1] != "--out") all.insert(all.end(), {"--out", directory.path().string()});
    const CommandResult result = test::run_aliquot(all);
    EXPECT_EQ(result.code, 1) << words[1];
    EXPECT_TRUE(result.err.starts_with("aliquot: ")) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
  EXPECT_NE(sweep(directory.path(), {"--zero-stage=3"})
                .err.find("--zero-stage is an option of aliquot train that "
                          "aliquot sweep does not accept: use --stages."),
            std::string::npos);
  std::filesystem::create_directories(directory.path() / "taken" / "sweep.csv");
  const CommandResult taken = sweep(directory.path() / "taken", {"--ranks", "1", "--stages", "0"});
  EXPECT_EQ(taken.code, 1);
  EXPECT_NE(taken.err.find("sweep.csv cannot be written there: choose another directory."), std::string::npos)
      << taken.err;
}

TEST(Sweep, AnUnwritablePictureExitsWith3) {
  test::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / "memory.svg");
  const CommandResult result = sweep(directory.path(), {"--ranks", "1", "--stages", "0", "--steps", "1"});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("memory.svg: the file could not be written (is the disk full?)"), std::string::npos)
      << result.err;
}

/// sweep.csv is a pipe whose reader exits after the heading, so writing the first row fails.
TEST(Sweep, AnUnwritableTableExitsWith3) {
  test::TemporaryDirectory directory;
  const auto table_of = directory.path() / "sweep.csv";
  ASSERT_EQ(mkfifo(table_of.c_str(), 0600), 0);
  const CommandResult result = test::run_program(
      "/bin/sh", {"-c",
                  "trap '' PIPE; head -n 1 \"$1/sweep.csv\" & exec \"$0\" sweep --out \"$1\" --ranks 1 "
                  "--stages 0 --layers 1 --width 32 --threads 1",
                  test::aliquot_program(), directory.path().string()});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("sweep.csv: the file could not be written (is the disk full?)"), std::string::npos)
      << result.err;
}

TEST(ChildProcess, IsNotStartedIfItsOutputCannotBeOpened) {
  try {
    ChildProcess({"/bin/true"}, "/no/such/output.txt");
    FAIL();
  } catch (const FaultError& error) {
    EXPECT_STREQ(error.what(), "/no/such/output.txt: the file cannot be written: No such file or directory.");
  }
}

/// Makes clone() fail, and then tries to start a process.
[[noreturn]] void start_where_none_starts() {
  try {
    if (!test::fail_system_call(SYS_clone, EAGAIN)) std::exit(9);
    ChildProcess({"/bin/true"}, "/dev/null");
  } catch (const FaultError& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(3);  // std::exit would run the leak checker, which calls clone()
  }
  std::_Exit(0);
}

TEST(ChildProcessDeathTest, ReportsThatNoProcessCanBeStarted) {
  if (prctl(PR_GET_SECCOMP) < 0) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EXIT(start_where_none_starts(), testing::ExitedWithCode(3),
              "/bin/true: the program cannot be started: Resource temporarily unavailable\\.");
}

/// On SIGTERM the sweep stops its current run and writes its results so far.
TEST(Sweep, StopsOnSigterm) {
  test::TemporaryDirectory directory;
  const auto out = directory.path() / "out";
  ChildProcess child({"/bin/sh", "-c",
                      "\"$0\" sweep --out \"$1\" --ranks 1 --stages 0 --steps 1000000 --layers 1 & sweep=$!\n"
                      "until grep -q '\"step\":2' \"$1\"/runs/*.jsonl 2>/dev/null; do sleep 0.05; done\n"
                      "kill $sweep; wait $sweep",
                      test::aliquot_program(), out.string()},
                     directory.path() / "output.txt");
  ASSERT_TRUE(child.wait_for_exit(60)) << contents(directory.path() / "output.txt");
  EXPECT_EQ(child.exit_status().code, 128 + SIGTERM) << contents(directory.path() / "output.txt");
  EXPECT_EQ(test::xml_problem(contents(out / "memory.svg")), "");
}

}  // namespace
}  // namespace aliquot
