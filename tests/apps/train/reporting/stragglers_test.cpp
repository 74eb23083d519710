#include "apps/train/reporting/stragglers.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/ranks_text.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

StragglerReport report_of(int64_t step, const std::vector<double>& compute) {
  std::vector<RankSeconds> ranks;
  for (const double seconds : compute)
    ranks.push_back({.compute = seconds, .waiting = 4 - seconds, .communication = 1});
  return straggler_report(step, ranks);
}

TEST(Stragglers, TheSlowestRankIsComparedWithTheMedian) {
  const StragglerReport four = report_of(7, {1.0, 1.1, 3.3, 1.2});
  EXPECT_EQ(four.slowest, 2);
  EXPECT_DOUBLE_EQ(four.ratio_to_median, 3.0);
  EXPECT_DOUBLE_EQ(report_of(7, {2.0, 1.0}).ratio_to_median, 2.0);
  EXPECT_DOUBLE_EQ(report_of(7, {2.0}).ratio_to_median, 1.0);
  EXPECT_DOUBLE_EQ(report_of(7, {0.0, 0.0}).ratio_to_median, 1.0);
  const Json object = json(four)["stragglers"];
  EXPECT_EQ(object["slowest_rank"], 2);
  EXPECT_EQ(object["compute_seconds"].size(), 4u);
}

/// Pipeline stages have different amounts of work, so a rank is compared only with ranks of its own pipeline stage.
TEST(Stragglers, RanksAreComparedWithinTheirPipelineStage) {
  std::vector<RankSeconds> ranks(6);
  for (const auto& [rank, compute] : {std::pair{0, 1.0}, {1, 1.0}, {2, 2.0}, {3, 10.0}, {4, 10.0}, {5, 11.0}})
    ranks[static_cast<size_t>(rank)].compute = compute;
  const StragglerReport report = straggler_report(1, ranks, 2);
  EXPECT_EQ(report.slowest, 2);
  EXPECT_DOUBLE_EQ(report.ratio_to_median, 2.0);
  EXPECT_DOUBLE_EQ(report.ratio(5), 1.1);
}

TEST(Stragglers, ARankIsNamedAfterThreeSlowReportsInARow) {
  StragglerWatch watch(1.5);
  EXPECT_FALSE(watch.sentence(report_of(10, {1, 1, 2})));
  EXPECT_FALSE(watch.sentence(report_of(20, {1, 1, 2})));
  EXPECT_FALSE(watch.sentence(report_of(30, {1, 2, 1})));  // now rank 1 is slow instead of rank 2
  EXPECT_FALSE(watch.sentence(report_of(40, {1, 2, 1})));
  EXPECT_FALSE(watch.sentence(report_of(50, {1, 1.4, 1})));  // rank 1 is below the threshold
  EXPECT_FALSE(watch.sentence(report_of(60, {1, 2, 1})));
  EXPECT_FALSE(watch.sentence(report_of(70, {1, 2, 1})));
  const auto sentence = watch.sentence(report_of(80, {1, 2, 1}));
  ASSERT_TRUE(sentence);
  EXPECT_NE(sentence->find("rank 1 computes 2.00 times"), std::string::npos) << *sentence;
  EXPECT_FALSE(watch.sentence(report_of(90, {1, 2, 1})));  // rank 1 was already reported
}

/// Half of the ranks share a slow node. In each report, a different rank of this node is the slowest.
TEST(Stragglers, RanksOfASlowNodeAreNamedTogether) {
  StragglerWatch watch(1.5);
  const auto report = [](int64_t step, size_t slowest) {
    std::vector<double> compute(16, 1.0);
    std::fill(compute.begin() + 8, compute.end(), 2.0);
    compute[slowest] = 2.5;
    return report_of(step, compute);
  };
  EXPECT_FALSE(watch.sentence(report(10, 8)));
  EXPECT_FALSE(watch.sentence(report(20, 15)));
  const auto sentence = watch.sentence(report(30, 11));
  ASSERT_TRUE(sentence);
  EXPECT_EQ(*sentence,
            "ranks 8 to 15 compute up to 2.50 times as long as the median rank (2.5 s of step 30), and the other ranks "
            "wait for them: check their nodes.");
  EXPECT_FALSE(watch.sentence(report(40, 9)));  // the node was already reported
}

TEST(Stragglers, ARankThatBecomesSlowLaterIsNamedAlone) {
  StragglerWatch watch(1.5);
  EXPECT_FALSE(watch.sentence(report_of(10, {1, 1, 1, 1, 2})));
  EXPECT_FALSE(watch.sentence(report_of(20, {1, 3, 1, 1, 2})));
  EXPECT_EQ(watch.sentence(report_of(30, {1, 3, 1, 1, 2})).value_or("").substr(0, 27), "rank 4 computes 2.00 times ");
  EXPECT_EQ(watch.sentence(report_of(40, {1, 3, 1, 1, 2})).value_or("").substr(0, 27), "rank 1 computes 3.00 times ");
  EXPECT_FALSE(watch.sentence(report_of(50, {1, 1, 1, 1, 2})));
  EXPECT_FALSE(watch.sentence(report_of(60, {1, 3, 1, 1, 2})));  // rank 1 must be slow in several reports again
}

TEST(RanksText, AbbreviatesConsecutiveRanks) {
  EXPECT_EQ(ranks_text({1}), "rank 1");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(ranks_text({0, 1, 2}), "ranks 0 to 2");
  EXPECT_EQ(ranks_text({0, 1, 3}), "ranks 0, 1 and 3");
  EXPECT_EQ(ranks_text({0, 3, 8, 9, 10, 11}), "ranks 0, 3 and 8 to 11");
  EXPECT_EQ(ranks_text({2, 1, 0}), "ranks 2, 1 and 0");
}

/// Rank 1 runs without vector instructions. The model is wide enough that matrix products dominate its time.
TEST(Stragglers, ASlowRankIsNamedInARun) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "run.jsonl";
  std::vector<std::string> words = {"mpirun", "--oversubscribe"};
  const std::vector<std::string> train = {test::aliquot_program(), "train",     "--steps=40",  "--layers=2",
                                          "--width=256",           "--heads=4", "--threads=1", "--quiet",
                                          "--stragglers-every=4",  "--metrics", metrics};
  words.insert(words.end(), {"-n", "1"});
  words.insert(words.end(), train.begin(), train.end());
  words.insert(words.end(), {":", "-n", "1", "-x", "ALIQUOT_ISA=plain"});
  words.insert(words.end(), train.begin(), train.end());
  const test::CommandResult result = test::run_program("/usr/bin/env", words, test::mpirun_environment());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("aliquot: rank 1 computes"), std::string::npos) << result.err;
  int reports = 0, waited_for = 0;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const Json object = Json::parse(line);
    if (!object.contains("stragglers")) continue;
    ++reports;
    const Json& report = object["stragglers"];
    // A busy machine may delay rank 0 in some steps.
    waited_for += report["slowest_rank"] == 1 && report["waiting_seconds"][0] > report["waiting_seconds"][1];
  }
  EXPECT_EQ(reports, 10);
  EXPECT_GE(waited_for, 7);
}

}  // namespace
}  // namespace aliquot
