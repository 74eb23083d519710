// Tests the page of aliquot report: its curves and tables, and that it is well-formed.
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <sstream>

#include "apps/report/csv.h"
#include "apps/report/page.h"
#include "kernels/system/error.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/well_formed.h"

namespace aliquot {
namespace {

using test::CommandResult;
using test::TemporaryDirectory;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Returns the points of each polyline that belongs to `series`.
std::vector<std::vector<std::pair<double, double>>> lines_of(const std::string& page, const std::string& series) {
  std::vector<std::vector<std::pair<double, double>>> lines;
  std::istringstream text(page);
  for (std::string line; std::getline(text, line);) {
    if (line.find("data-series=\"" + series + "\"") == std::string::npos) continue;
    const size_t from = line.find("points=\"") + 8;
    std::istringstream points(line.substr(from, line.find('"', from) - from));
    lines.emplace_back();
    char comma = 0;
    for (double x = 0, y = 0; points >> x >> comma >> y;) lines.back().emplace_back(x, y);
  }
  return lines;
}

ReportRun run_of(const std::string& name, const std::vector<Json>& losses) {
  ReportRun run{name, {}, "#000000", "none"};
  run.record.run = {{"options", {{"model", "gpt2-nano"}, {"zero-stage", "3"}, {"lr", 0.1}}},
                    {"world", {{"ranks", 2}, {"device", "host"}}},
                    {"plan", {{"memory", {{"parameters", 10}, {"activations", 5}, {"peak", 15}}}}}};
  for (size_t i = 0; i < losses.size(); ++i)
    run.record.steps.push_back(
        {{"step", i + 1}, {"loss", losses[i]}, {"grad_norm", 1.0}, {"lr", 0.1}, {"tokens_per_second", 5.0}});
  return run;
}

TEST(Report, CurvePointsMatchTheirValues) {
  const std::string page = report_page({run_of("a", {4.0, 3.0, 2.0, 2.0})}, {});
  EXPECT_EQ(test::xml_problem(page), "");
  const auto lines = lines_of(page, "loss");
  ASSERT_EQ(lines.size(), 1u);
  ASSERT_EQ(lines[0].size(), 4u);
  const auto& p = lines[0];
  EXPECT_NEAR(p[1].first - p[0].first, p[3].first - p[2].first, 0.2);  // steps are equally spaced
  EXPECT_NEAR(p[1].second - p[0].second, p[2].second - p[1].second, 0.2);
  EXPECT_GT(p[1].second, p[0].second);  // in SVG y grows downwards
  EXPECT_EQ(p[2].second, p[3].second);
}

TEST(Report, ValuesThatAreNotFiniteLeaveAGap) {
  const std::string page = report_page({run_of("a", {4.0, 3.0, nullptr, 2.0, 2.5})}, {});
  EXPECT_EQ(lines_of(page, "loss").size(), 2u);
  EXPECT_EQ(lines_of(page, "lr").size(), 1u);
  EXPECT_EQ(test::xml_problem(report_page({run_of("none at all", {nullptr, nullptr})}, {})), "");
  EXPECT_EQ(test::xml_problem(report_page({run_of("no steps", {})}, {})), "");
}

TEST(Report, LongRunsAreDownsampledAndKeepTheirPeaks) {
  std::vector<Json> losses(100'000, 1.0);
  losses[54'321] = 9.0;
  const std::string page = report_page({run_of("a", losses)}, {});
  EXPECT_LT(page.size(), 300'000u);
  const auto lines = lines_of(page, "loss");
  ASSERT_EQ(lines.size(), 1u);
  double least = 1e9, most = 0;
  for (const auto& [x, y] : lines[0]) {
    least = std::min(least, y);
    most = std::max(most, y);
  }
  EXPECT_GT(most - least, 100);
}

TEST(Report, TableShowsRankTimesOfAStep) {
  ReportRun run = run_of("a", {1.0});
  EXPECT_NE(report_page({run}, {}).find("the record has no straggler report"), std::string::npos);
  run.record.stragglers = {{"step", 19},
                           {"slowest_rank", 1},
                           {"times_median", 2.5},
                           {"compute_seconds", {0.2, 0.5}},
                           {"waiting_seconds", {0.4, 0.1}},
                           {"communication_seconds", {0.3, "none"}}};
  const std::string page = report_page({run}, {});
  EXPECT_EQ(test::xml_problem(page), "");
  EXPECT_NE(page.find("step 19; rank 1 computed longest, 2.50 times the median"), std::string::npos);
  EXPECT_NE(page.find("<td class=\"figure\">1</td><td class=\"figure\">0.5</td><td class=\"figure\">0.1</td>"),
            std::string::npos);
}

TEST(Report, NamesAndOptionsAreEscaped) {
  ReportRun hostile = run_of("<b>&\"name\"", {1.0});
  hostile.record.run["options"]["model"] = "</table><script>alert(1)</script>";
  const std::string page = report_page({hostile, run_of("b", {2.0})}, {"", {{"a<b", "1"}, {"\"&", "2"}}});
  EXPECT_EQ(test::xml_problem(page), "");
  EXPECT_EQ(count(page, "<script"), 0u);
}

TEST(Report, ListsOnlyOptionsThatDiffer) {
  ReportRun other = run_of("other", {1.0});
  other.record.run["options"]["lr"] = 0.25;
  const std::string page = report_page({run_of("one", {1.0}), other}, {});
  const std::string options = page.substr(page.find("Options that differ"));
  EXPECT_NE(options.find("<td>lr</td><td>0.1</td><td>0.25</td>"), std::string::npos) << options;
  EXPECT_EQ(options.find("zero-stage"), std::string::npos);
  EXPECT_NE(report_page({run_of("one", {1.0}), run_of("two", {1.0})}, {}).find("none: the runs have the same options"),
            std::string::npos);
}

TEST(Report, CsvUnquotesCells) {
  const auto rows = parse_csv("a,b\r\n\"x, \"\"y\"\"\",\n\n1,2");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1], (std::vector<std::string>{"x, \"y\"", ""}));
  EXPECT_EQ(rows[2], (std::vector<std::string>{"1", "2"}));
}

/// The page of two runs and a sweep has curves, operations and memory bars. It loads nothing from the network.
TEST(Report, PageOfRealRunsIsComplete) {
  TemporaryDirectory directory;
  const auto path = [&](const char* name) { return (directory.path() / name).string(); };
  const std::vector<std::string> small = {"train",   "--ranks", "2",         "--layers", "1",
                                          "--width", "32",      "--threads", "1",        "--quiet"};
  const auto train = [&](std::vector<std::string> words) {
    words.insert(words.begin(), small.begin(), small.end());
    ASSERT_EQ(test::run_aliquot(words).code, 0);
  };
  train({"--steps", "5", "--metrics", path("one.jsonl")});
  train({"--steps", "4", "--metrics", path("two.jsonl"), "--accumulate", "2", "--zero-stage", "1"});
  ASSERT_EQ(test::run_aliquot(
                {"sweep", "--layers", "1", "--width", "32", "--ranks", "1", "--stages", "0,3", "--out", path("sweep")})
                .code,
            0);
  const CommandResult result = test::run_aliquot(
      {"report", path("one.jsonl"), path("two.jsonl"), "--sweep", path("sweep"), "--out", path("page.html")});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = contents(path("page.html"));
  EXPECT_EQ(test::xml_problem(page), "");
  const auto losses = lines_of(page, "loss");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].size(), 5u);
  EXPECT_EQ(losses[1].size(), 4u);
  for (const char* text : {">one: one step of rank 0", ">two: one step of rank 0", "peak ",
                           "parameters planned: ", "optimizer measured: ", "<td>zero-stage</td>",
                           "Memory per rank against model size", "backward h.0 m1"})
    EXPECT_GE(count(page, text), 1u) << text;
  EXPECT_EQ(count(page, "not finished"), 0u);
  // The table of the sweep has readable values, and no columns that do not fit on the page.
  EXPECT_EQ(count(page, "<th>planned peak</th>"), 1u);
  EXPECT_EQ(count(page, "parameters_bytes"), 0u);
  EXPECT_EQ(count(page, "parameters bytes"), 0u);
  EXPECT_GE(count(page, "iB</td>"), 6u);
  EXPECT_EQ(count(page, "http"), count(page, "xmlns=\"http://www.w3.org/"));
  EXPECT_EQ(count(page, "<script"), 0u);
  EXPECT_EQ(count(page, "src="), 0u);
}

TEST(Report, AcceptsTruncatedRecords) {
  TemporaryDirectory directory;
  const auto metrics = directory.path() / "run.jsonl", page = directory.path() / "page.html";
  ASSERT_EQ(
      test::run_aliquot({"train", "--layers", "1", "--steps", "4", "--quiet", "--metrics", metrics.string()}).code, 0);
  const std::string complete = contents(metrics);
  std::ofstream(metrics) << complete.substr(0, complete.find("{\"step\":3") + 30);
  ASSERT_EQ(test::run_aliquot({"report", metrics.string(), "--out", page.string()}).code, 0);
  EXPECT_EQ(lines_of(contents(page), "loss").at(0).size(), 2u);
  EXPECT_EQ(count(contents(page), "not finished"), 1u);
}

TEST(Report, InvalidUsePrintsOneLineAndExitsWith1) {
  TemporaryDirectory directory;
  const auto file = directory.path() / "bad.jsonl";
  std::ofstream(file) << "{\"run\":{}}\nnonsense\n";
  const auto steps = directory.path() / "steps.jsonl";
  std::ofstream(steps) << "{\"step\":1}\n";
  const auto odd = directory.path() / "odd.jsonl";
  std::ofstream(odd) << R"({"run":{"options":{},"plan":{"memory":3},"world":{}}})"
                     << "\n{\"step\":1}\n";
  const auto empty = directory.path() / "empty";
  std::filesystem::create_directory(empty);
  std::ofstream(empty / "sweep.csv").flush();
  std::ofstream(empty / "memory.svg").flush();
  const std::string out = (directory.path() / "page.html").string();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"report"},
                                                {"report", "/no/such.jsonl"},
                                                {"report", file.string()},
                                                {"report", steps.string()},
                                                {"report", odd.string()},
                                                {"report", "--sweep", directory.path().string()},
                                                {"report", "--sweep", empty.string()},
                                                {"report", "--sweep", ""},
                                                {"report", "--colour", "red"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--out", out});
    const CommandResult result = test::run_aliquot(all);
    EXPECT_EQ(result.code, 1) << words.back();
    EXPECT_TRUE(result.err.starts_with("aliquot: ")) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  const auto run = directory.path() / "run.jsonl";
  ASSERT_EQ(test::run_aliquot(
                {"train", "--quiet", "--layers", "1", "--threads", "1", "--steps", "1", "--metrics", run.string()})
                .code,
            0);
  const CommandResult nowhere = test::run_aliquot({"report", run.string(), "--out", "/no/such/page.html"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("--out /no/such/page.html: the file cannot be written (No such file or directory): name "
                             "another file."),
            std::string::npos)
      << nowhere.err;
  const std::string record = contents(run);
  const CommandResult itself = test::run_aliquot({"report", run.string(), "--out", run.string()});
  EXPECT_EQ(itself.code, 1);
  EXPECT_NE(itself.err.find("is one of the input files: name another file."), std::string::npos) << itself.err;
  EXPECT_EQ(contents(run), record);
}

}  // namespace
}  // namespace aliquot
