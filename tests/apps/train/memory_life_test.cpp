// Compares the planned memory of a run with the memory that the ledger and the operating system measure, from start to
// end.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include "apps/train/reporting/system_memory.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/all_cases.h"
#include "tests/support/mpirun.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// How a run is started: as threads or as processes. If `ranks_per_node` is not 0, the run emulates nodes of that many
/// ranks.
struct Launch {
  int ranks = 2;
  bool processes = false;
  int ranks_per_node = 0;
};

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

test::CommandResult run(const Launch& launch, const Words& more) {
  const std::string ranks = std::to_string(launch.ranks);
  const Words words = joined({"train", "--threads", "1", "--quiet"}, more);
  Words variables;
  if (launch.ranks_per_node > 0) variables.push_back("ALIQUOT_RANKS_PER_NODE=" + std::to_string(launch.ranks_per_node));
  if (!launch.processes)
    return test::run_program(test::aliquot_program(), joined(words, {"--ranks", ranks}), variables);
  return test::run_program("/usr/bin/env",
                           joined({"mpirun", "--oversubscribe", "-n", ranks, test::aliquot_program()}, words),
                           test::mpirun_environment(variables));
}

Json lines_of(const std::string& path) {
  std::ifstream file(path);
  Json lines = Json::array();
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// Runs the command, which must exit with code 0. Returns the `done` object of its metrics.
Json done_of(const Launch& launch, const Words& words) {
  const test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "m.jsonl";
  const test::CommandResult result = run(launch, joined(words, {"--metrics", metrics}));
  EXPECT_EQ(result.code, 0) << result.err;
  const Json lines = lines_of(metrics);
  return lines.empty() ? Json() : lines.back().value("done", Json());
}

std::string text_of(const Launch& launch, const Words& words) {
  std::string text = std::to_string(launch.ranks) + (launch.processes ? " processes, " : " threads, ") +
                     std::to_string(launch.ranks_per_node) + " per node:";
  for (const std::string& word : words) text += " " + word;
  return text;
}

constexpr int64_t kMiB = int64_t{1} << 20;

// The embedding takes 50 MB in fp32, so one more copy of it on every rank exceeds the bound.
const Words kWide = {"--layers", "1",     "--width",    "256",       "--heads",       "4",
                     "--vocab",  "50257", "--sequence", "16",        "--micro-batch", "1",
                     "--steps",  "2",     "--model",    "gpt2-nano", "--recompute",   "block"};

TEST(MemoryLife, SystemPeakExceedsThePlanByAtMost32MiB) {
  const test::TemporaryDirectory directory;
  const std::string runs = directory.path() / "runs", data = directory.path() / "d.bytes";
  std::ofstream(data) << std::string(20000, 'a');
  const Words saves = joined(kWide, {"--checkpoint-dir", runs, "--checkpoint-every", "1", "--eval-data", data,
                                     "--eval-every", "1", "--data", data});
  const Words resumes = joined(kWide, {"--resume", "auto", "--checkpoint-dir", runs, "--data", data});
  std::vector<std::pair<Launch, Words>> cases = {{{2}, joined(kWide, {"--gather", "copy"})},
                                                 {{2}, joined(kWide, {"--zero-stage", "0"})},
                                                 {{2}, saves},
                                                 {{2}, joined(resumes, {"--steps", "3"})}};
  if (test::has_mpi()) {
    cases.push_back({{2, true}, joined(kWide, {"--gather", "copy"})});
    cases.push_back({{2, true, 1}, kWide});
    cases.push_back({{2, true, 1}, joined(resumes, {"--steps", "4"})});
  }
  for (const auto& [launch, words] : cases) {
    const Json done = done_of(launch, words);
    const std::string text = text_of(launch, words);
    ASSERT_TRUE(done.is_object()) << text;
    EXPECT_EQ(done["planned"], done["measured"]) << text;
    EXPECT_EQ(done["planned_peak"], done["measured_peak"]) << text;
    const int64_t beyond =
        done["system_peak"].get<int64_t>() - done["system_start"].get<int64_t>() - done["planned_peak"].get<int64_t>();
    if (test::test_time_scale() <= 1) {
      EXPECT_LE(beyond, 32 * kMiB) << text << " while " << done["system_peak_phase"];
    }
    EXPECT_GE(done["system_peak"], done["system_bytes"]) << text;
    EXPECT_EQ(done["system_phases"][done["system_peak_phase"].get<std::string>()], done["system_peak"]) << text;
  }
}

/// Reductions between nodes need staging for the data that other nodes send. The plan and the budget count this
/// staging.
TEST(MemoryLife, OnSeveralNodesMeasuredEqualsPlannedAndBudgetsHold) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const std::vector<Words> all = {{},
                                  {"--zero-stage", "0", "--precision", "bf16"},
                                  {"--zero-stage", "2", "--optimizer", "muon"},
                                  {"--quantize", "weights", "--memory-budget", "8MiB"},
                                  {"--quantize", "both"},
                                  {"--replicas", "2"},
                                  {"--replicas", "2", "--zero-stage", "1", "--memory-budget", "13MiB"}};
  test::CaseSelection selection(2);
  for (const Launch& launch : {Launch{2, true, 1}, Launch{4, true, 2}, Launch{3, true, 2}}) {
    for (const Words& more : all) {
      const bool wants_even_nodes = !more.empty() && (more[0] == "--quantize" || more[0] == "--replicas");
      if (wants_even_nodes && launch.ranks % 2 != 0) continue;
      if (!selection.next()) continue;
      const Words words = joined({"--steps", "2", "--layers", "2", "--micro-batch", "1"}, more);
      const Json done = done_of(launch, words);
      const std::string text = text_of(launch, words);
      ASSERT_TRUE(done.is_object()) << text;
      EXPECT_EQ(done["planned"], done["measured"]) << text;
      EXPECT_EQ(done["planned_peak"], done["measured_peak"]) << text;
      const auto budget = std::find(words.begin(), words.end(), "--memory-budget");
      if (budget == words.end()) continue;
      EXPECT_LE(done["measured_peak"], std::stoll(*(budget + 1)) * kMiB) << text;
    }
  }
}

TEST(SystemPeak, NamesThePhaseOfThePeak) {
  SystemPeak peak(false);
  EXPECT_GT(peak.start_bytes(), 0);
  EXPECT_EQ(peak.enter(RunPhase::kTraining), RunPhase::kStart);
  // Uses a mapping, because sanitizers keep heap memory after it is freed.
  constexpr std::size_t kBytes = 256 * kMiB;
  void* const mapping = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  std::memset(mapping, 1, kBytes);
  EXPECT_EQ(peak.enter(RunPhase::kSaving), RunPhase::kTraining);
  ASSERT_EQ(::munmap(mapping, kBytes), 0);
  EXPECT_EQ(peak.phase(), RunPhase::kTraining);
  EXPECT_GE(peak.bytes(), peak.start_bytes() + 200 * kMiB);
  EXPECT_EQ(peak.enter(RunPhase::kDigest), RunPhase::kSaving);
  EXPECT_EQ(peak.phase(), RunPhase::kTraining) << "the peak must include memory that was freed later";
  const auto peak_of = [&](RunPhase phase) { return peak.bytes_by_phase()[static_cast<std::size_t>(phase)]; };
  EXPECT_GE(peak_of(RunPhase::kTraining), peak_of(RunPhase::kStart) + 200 * kMiB);
  EXPECT_EQ(peak_of(RunPhase::kTraining), peak.bytes());
  EXPECT_EQ(peak_of(RunPhase::kSaving), 0) << "saving did not exceed training";
  EXPECT_EQ(name(peak.phase()), "training");
}

}  // namespace
}  // namespace aliquot
