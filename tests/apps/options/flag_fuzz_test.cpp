// Runs random command lines of aliquot train.
//
// - On every rank, a run that the command accepts uses exactly the memory that it planned, in every category.
// - A run stays within its budget, and resumes to the same checkpoint.
// - The memory that the system counts exceeds the plan by at most 32 MiB per rank.
// - Runs that differ only in options without effect on the result have the same digest. A pipeline has no effect on the
//   result if each pipeline stage has as many ranks as the run without a pipeline. draw_pipelined() lists the
//   exceptions.
//
// ALIQUOT_FLAG_FUZZ="SEED COUNT" runs COUNT cases, beginning with SEED. The default is 12 cases, beginning with seed 1.
// A failure prints its seed.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/apps/options/flag_draw.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;
using test::add;
using test::Case;
using test::Draw;
using test::draw_free;
using test::joined;
using test::Words;

constexpr int64_t kMiB = int64_t{1} << 20;

class Runs {
 public:
  explicit Runs(std::string scratch) : scratch_(std::move(scratch)) {
    std::ofstream(scratch_ + "/data.bytes") << std::string(3000, 'x') << std::string(3000, 'y');
  }
  int accepted() const { return accepted_; }
  int accepted_pipelines() const { return accepted_pipelines_; }
  int accepted_tensor_groups() const { return accepted_tensor_groups_; }

  /// Returns the `done` object of the metrics. If the command rejects the options, expects an error message and returns
  /// null.
  Json run(const Case& drawn, const Words& more) {
    const std::string metrics = scratch_ + "/m.jsonl";
    std::filesystem::remove(metrics);
    Words words{"train", "--steps", "3", "--progress", "none", "--metrics", metrics};
    add(words, drawn.words);
    add(words, more);
    const Words nodes =
        drawn.ranks_per_node > 0 ? Words{"ALIQUOT_RANKS_PER_NODE=" + std::to_string(drawn.ranks_per_node)} : Words{};
    const auto pipeline = std::ranges::find(more, "--pipeline");
    const int stages = pipeline == more.end() ? 1 : std::stoi(*std::next(pipeline));
    const test::CommandResult result = launch(drawn.processes, drawn.ranks * drawn.tensor * stages, words, nodes);
    const std::string& line = last_line_;
    const bool refused = result.code == 1 || result.code == 2;
    if (refused) {
      EXPECT_NE(result.err.find("aliquot: "), std::string::npos) << line << result.err;
      EXPECT_FALSE(trained(metrics)) << "the run was rejected after its first step: " << line << "\n" << result.err;
      return nullptr;
    }
    EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
    std::ifstream file(metrics);
    Json done;
    for (std::string text; std::getline(file, text);) done = Json::parse(text);
    if (result.code != 0 || !done.contains("done")) return nullptr;
    ++accepted_;
    if (stages > 1) ++accepted_pipelines_;
    if (drawn.tensor > 1) ++accepted_tensor_groups_;
    EXPECT_NE(result.out.find("planned and measured agree to the byte\n"), std::string::npos) << line << result.out;
    expect_as_planned(done["done"]);
    return done["done"];
  }
  /// Like run(), but expects that the command accepts the options, because it accepted equivalent options before.
  Json run_again(const Case& drawn, const Words& more) {
    Json done = run(drawn, more);
    EXPECT_FALSE(done.is_null()) << "rejected, although an equivalent command line was accepted: " << last_line_;
    return done;
  }
  const std::string& last_line() const { return last_line_; }
  const std::string& scratch() const { return scratch_; }

 private:
  /// Runs `words`, and sets last_line_.
  test::CommandResult launch(bool processes, int rank_count, Words words, const Words& variables) {
    const std::string ranks = std::to_string(rank_count);
    if (!processes) add(words, {"--ranks", ranks});
    last_line_.clear();
    for (const std::string& word : variables) last_line_ += word + " ";
    last_line_ += processes ? "mpirun -n " + ranks + " aliquot" : "aliquot";
    for (const std::string& word : words) last_line_ += " " + word;
    if (!processes) return test::run_program(test::aliquot_program(), words, variables);
    const Words launched = joined({"mpirun", "--oversubscribe", "-n", ranks, test::aliquot_program()}, words);
    return test::run_program("/usr/bin/env", launched, test::mpirun_environment(variables));
  }
  /// True if the metrics contain a step.
  static bool trained(const std::string& metrics) {
    std::ifstream file(metrics);
    for (std::string text; std::getline(file, text);) {
      if (text.starts_with("{\"step\"")) return true;
    }
    return false;
  }
  void expect_as_planned(const Json& done) const {
    EXPECT_EQ(done["planned"], done["measured"]) << last_line_;
    EXPECT_EQ(done["planned_peak"], done["measured_peak"]) << last_line_;
    const int64_t beyond =
        done["system_peak"].get<int64_t>() - done["system_start"].get<int64_t>() - done["planned_peak"].get<int64_t>();
    if (test::test_time_scale() <= 1) {
      EXPECT_LE(beyond, 32 * kMiB) << last_line_ << " while " << done["system_peak_phase"];
    }
    if (!done.contains("stages")) return;
    for (const Json& stage : done["stages"]) {
      EXPECT_EQ(stage["planned"], stage["measured"]) << last_line_;
      EXPECT_EQ(stage["planned_peak"], stage["measured_peak"]) << last_line_;
    }
  }

  std::string scratch_, last_line_;
  int accepted_ = 0, accepted_pipelines_ = 0, accepted_tensor_groups_ = 0;
};

/// Expects that a run that stops and resumes ends with the digest and the checkpoint of an uninterrupted run.
void expect_resumes(Runs& runs, const Case& drawn, const Words& free, Draw& draw) {
  const std::string uninterrupted = runs.scratch() + "/uninterrupted", split = runs.scratch() + "/split";
  const Json one = runs.run_again(drawn, joined(free, {"--checkpoint-dir", uninterrupted, "--save", "blocking"}));
  const Words saves{"--checkpoint-dir", split, "--save", draw.one_of({"blocking", "snapshot"})};
  const std::string stop = std::to_string(1 + draw.below(2));
  const Json half = runs.run_again(drawn, joined(free, joined(saves, {"--stop-after", stop})));
  const Json two = runs.run_again(drawn, joined(free, joined(saves, {"--resume", "auto"})));
  if (!one.is_null() && !half.is_null() && !two.is_null()) {
    EXPECT_EQ(two["digest"], one["digest"]) << runs.last_line();
    const std::string file = "/" + checkpoint_name(3) + "/state.h5";
    EXPECT_TRUE(test::read_file(split + file) == test::read_file(uninterrupted + file)) << runs.last_line();
  }
  std::filesystem::remove_all(uninterrupted);
  std::filesystem::remove_all(split);
}

/// Returns random options for saves. Their staging memory counts in a budget.
Words draw_saves(Draw& draw, const std::string& directory) {
  if (!draw.chance(40)) return {};
  const std::string when = draw.one_of({"0", "1", "2"});
  return {"--checkpoint-dir", directory, "--checkpoint-every", when, "--save", draw.one_of({"auto", "blocking"})};
}

/// Expects that a run with a random budget stays within it.
void expect_within_budget(Runs& runs, const Case& drawn, const Words& free, const Json& first, Draw& draw) {
  const std::string saved = runs.scratch() + "/budgeted", first_line = runs.last_line();
  const Words saves = draw_saves(draw, saved);
  int64_t budget = first["planned_peak"].get<int64_t>() * (50 + draw.below(60)) / 100;
  if (!saves.empty() && draw.chance(70)) budget += kStagingBytes;
  const Words limited = joined(free, joined(saves, {"--memory-budget", std::to_string(budget)}));
  if (const Json within = runs.run(drawn, limited); !within.is_null()) {
    EXPECT_LE(within["planned_peak"], budget) << runs.last_line();
    EXPECT_LE(within["measured_peak"], budget) << runs.last_line();
    EXPECT_EQ(within["digest"], first["digest"]) << first_line << "\n" << runs.last_line();
  }
  std::filesystem::remove_all(saved);
}

void run_case(uint64_t seed, Runs& runs) {
  Draw draw(seed);
  const Case drawn = draw_case(draw, test::has_mpi());
  const int stage = drawn.quantized_weights ? 3 : -1;
  const Words free = draw_free(draw, drawn, stage, runs.scratch());
  const Json first = runs.run(drawn, free);
  if (first.is_null()) return;
  const std::string first_line = runs.last_line();
  if (const Json other = runs.run(drawn, draw_free(draw, drawn, stage, runs.scratch())); !other.is_null()) {
    EXPECT_EQ(other["digest"], first["digest"]) << first_line << "\n" << runs.last_line();
  }
  expect_within_budget(runs, drawn, free, first, draw);
  if (!drawn.quantized_gradients && !drawn.lora && draw.chance(30)) expect_resumes(runs, drawn, free, draw);
}

TEST(FlagFuzz, AcceptedRunsMatchPlanBudgetAndDigest) {
  uint64_t seed = 1;
  int count = 12;
  if (const char* text = std::getenv("ALIQUOT_FLAG_FUZZ")) std::istringstream(text) >> seed >> count;
  const test::TemporaryDirectory directory;
  Runs runs(directory.path());
  int cases = 0;
  for (uint64_t at = seed; at < seed + static_cast<uint64_t>(count); ++at, ++cases) {
    run_case(at, runs);
    if (testing::Test::HasFailure()) {
      FAIL() << "case with seed " << at << " failed: repeat it with ALIQUOT_FLAG_FUZZ=\"" << at << " 1\"";
    }
  }
  std::printf("%d cases, %d accepted command lines, %d of them with a pipeline, %d with tensor groups\n", cases,
              runs.accepted(), runs.accepted_pipelines(), runs.accepted_tensor_groups());
  EXPECT_GE(runs.accepted(), count) << "too many command lines were rejected for a useful test";
  EXPECT_GE(runs.accepted_pipelines(), count / 4) << "too few pipelines were accepted for a useful test";
  EXPECT_GE(runs.accepted_tensor_groups(), count / 4) << "too few tensor groups were accepted for a useful test";
}

}  // namespace
}  // namespace aliquot
