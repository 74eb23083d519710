// Tests of the check that scripts/soak.sh uses to find growing resources.
#include "tests/apps/soak/soak_samples.h"

#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "kernels/system/error.h"
#include "tests/support/well_formed.h"

namespace aliquot::test {
namespace {

constexpr Patience kPatience = {.warm_up_seconds = 4, .least_seconds = 6};

std::string table_of(const std::function<double(int)>& value, int seconds = 30) {
  std::string csv = "seconds,process,world,descriptors\n";
  for (int s = 0; s < seconds; ++s) csv += fmt::format("{},71,mpi,{}\n", s, value(s));
  return csv;
}

Verdict judged(const std::function<double(int)>& value, Bound bound = {.measure = "descriptors", .growth = 2},
               int seconds = 30) {
  return judge(read_series(table_of(value, seconds)), bound, kPatience);
}

TEST(SoakJudge, AcceptsSeriesThatAreFlatAfterWarmUp) {
  EXPECT_TRUE(judged([](int) { return 12; }).problems.empty());
  EXPECT_TRUE(judged([](int s) { return s < 4 ? 3 * s : 12; }).problems.empty());
  EXPECT_TRUE(judged([](int s) { return 12 + 6 * (s % 3 == 0); }).problems.empty());
  EXPECT_TRUE(judged([](int s) { return 30 - s; }).problems.empty());
}

/// The samples alternate between 10 and 13. The median of the first third is 10, and that of the last third is 13.
TEST(SoakJudge, AcceptsSamplesThatAlternate) {
  EXPECT_TRUE(judged([](int s) { return s % 4 == 0 ? 13 : s < 15 || s % 4 == 1 ? 10 : 13; }).problems.empty());
  EXPECT_EQ(judged([](int s) { return (s % 4 == 0 ? 13 : 10) + (s < 15 ? 0 : 3); }).problems.size(), 1u);
}

TEST(SoakJudge, ReportsGrowth) {
  const Verdict verdict = judged([](int s) { return 12 + s / 4; });
  ASSERT_EQ(verdict.problems.size(), 1u);
  EXPECT_NE(verdict.problems[0].find("descriptors of process 71 (mpi) grew from 14 to 18 within 25 s"),
            std::string::npos)
      << verdict.problems[0];
  EXPECT_EQ(verdict.judged, 1);
  EXPECT_EQ(verdict.longest_seconds, 25);
}

TEST(SoakJudge, AllowsGrowthByAShareOfTheFirstThird) {
  const Bound bound{.measure = "descriptors", .share = 0.5};
  EXPECT_TRUE(judged([](int s) { return s < 15 ? 100 : 149; }, bound).problems.empty());
  EXPECT_FALSE(judged([](int s) { return s < 15 ? 100 : 151; }, bound).problems.empty());
}

TEST(SoakJudge, ReportsAHighSampleAndAHighLastSample) {
  const Bound bound{.measure = "descriptors", .growth = 100, .most = 5, .at_the_end = 0};
  EXPECT_TRUE(judged([](int s) { return s == 29 ? 0 : 5; }, bound).problems.empty());
  EXPECT_EQ(judged([](int s) { return s == 29 ? 0 : s == 2 ? 6 : 5; }, bound).problems.size(), 1u);
  EXPECT_EQ(judged([](int) { return 1; }, bound).problems.size(), 1u);
}

TEST(SoakJudge, SkipsSeriesThatAreTooShort) {
  const Verdict verdict = judged([](int s) { return s; }, {.measure = "descriptors", .growth = 2}, 10);
  EXPECT_EQ(verdict.judged, 0);
  EXPECT_TRUE(verdict.problems.empty());
}

TEST(SoakJudge, ReadsOneSeriesPerProcessAndColumn) {
  const std::string csv =
      "seconds,process,world,threads,memory KiB\n0,1,mpi,2,10\n0,2,threads,5,20\n1,1,mpi,2,11\n1,3,mpi,2,12\n";
  const std::vector<Series> series = read_series(csv);
  ASSERT_EQ(series.size(), 6u);
  EXPECT_EQ(series[1].measure, "memory KiB");
  EXPECT_EQ(series[1].points.size(), 2u);
  EXPECT_EQ(series[2].world, "threads");
}

TEST(SoakJudge, ReportsMissingKindsOfDisturbance) {
  const std::vector<std::string> kinds = {"kill of a rank", "kill of all ranks", "USR1", "TERM", "3 ranks"};
  for (size_t left_out = 0; left_out <= kinds.size(); ++left_out) {
    std::string csv = "seconds,event\n1,threads\n";
    for (size_t k = 0; k < kinds.size(); ++k) csv += k == left_out ? "" : fmt::format("2,{}\n", kinds[k]);
    const auto missing = missing_from(read_events(csv), {.measure = "threads", .problems = {}, .worlds = {"threads"}});
    ASSERT_EQ(missing.size(), left_out < kinds.size() ? 1u : 0u) << csv;
    if (left_out + 1 < kinds.size()) {
      EXPECT_EQ(missing[0], "no event '" + kinds[left_out] + "' occurred");
    } else if (left_out + 1 == kinds.size()) {
      EXPECT_EQ(missing[0], "the number of ranks never changed");
    }
  }
}

TEST(SoakJudge, ReportsWorldsWithoutAJudgedProcess) {
  const std::vector<Event> events = read_events(
      "seconds,event\n1,mpi\n2,kill of a rank\n3,kill of all ranks\n4,USR1\n5,TERM\n6,4 ranks\n7,threads\n");
  const Verdict of_mpi = judged([](int) { return 12; });
  EXPECT_EQ(of_mpi.worlds, std::set<std::string>{"mpi"});
  EXPECT_EQ(missing_from(events, of_mpi),
            std::vector<std::string>{"no process of world threads ran long enough to be judged"});
  EXPECT_TRUE(judged([](int) { return 12; }, {.measure = "descriptors"}, 10).worlds.empty());
}

TEST(SoakJudge, RejectsInvalidTables) {
  EXPECT_THROW(read_series(""), UsageError);
  EXPECT_THROW(read_series("seconds,threads\n"), UsageError);
  EXPECT_THROW(read_series("seconds,threads\n1,2,3\n"), UsageError);
  EXPECT_THROW(read_series("seconds,threads\n1,\n"), UsageError);
  EXPECT_THROW(read_events("when,what\n1,kill\n"), UsageError);
}

TEST(SoakPicture, IsWellFormed) {
  const std::vector<Event> events = read_events("seconds,event\n3,kill of <one>\n8,USR1\n");
  const std::string svg = soak_picture(read_series(table_of([](int s) { return s; })), events);
  EXPECT_EQ(xml_problem(svg), "");
  EXPECT_NE(svg.find(">descriptors<"), std::string::npos);
}

}  // namespace
}  // namespace aliquot::test
