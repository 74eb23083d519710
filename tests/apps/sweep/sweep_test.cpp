#include <algorithm>
#include <csignal>
#include <gtest/gtest.h>

#include "apps/sweep/memory_picture.h"
#include "apps/sweep/sweep_options.h"
#include "apps/sweep/sweep_row.h"
#include "kernels/system/error.h"
#include "tests/support/well_formed.h"

namespace aliquot::test {
namespace {

SweepOptions parsed(const std::vector<std::string>& arguments) {
  SweepOptions options;
  parse_arguments(sweep_option_table(options), arguments);
  return options;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(SweepOptions, MakeEveryCombinationOnce) {
  SweepOptions o = parsed({"--models", "gpt2-nano,gpt2-124m", "--stages", "3,0,3", "--ranks", "1,4"});
  const std::vector<SweepCase> cases = cases_of(o);
  ASSERT_EQ(cases.size(), 8u);
  EXPECT_EQ(cases[0].name(), "gpt2-nano-stage3-ranks1");
  EXPECT_EQ(cases[7].name(), "gpt2-124m-stage0-ranks4");
  EXPECT_EQ(cases_of(parsed({"--stages", "all"})).size(), 8u);
}

TEST(SweepOptions, PassOnTheOptionsOfTrain) {
  SweepOptions o;
  const OptionTable table = sweep_option_table(o);
  parse_arguments(table, {"--micro-batch", "2", "--reproducible", "--steps", "5"});
  EXPECT_EQ(joined(command_of(o, {"gpt2-nano", 2, 4}, "/bin/aliquot", "m.jsonl")),
            "/bin/aliquot train --micro-batch=2 --reproducible=on --model gpt2-nano --zero-stage 2 --steps 5 "
            "--metrics m.jsonl --quiet --ranks 4");
  // sweep does not accept these options of train: it sets some itself, and with the others all runs would use the same
  // files.
  for (const char* own : {"--zero-stage", "--model", "--checkpoint-dir", "--metrics", "--resume"})
    EXPECT_EQ(table.find(own + 2), nullptr) << own;
}

TEST(SweepOptions, LauncherKeepsQuotesAndSubstitutesRanks) {
  const SweepOptions o = parsed({"--launcher", "mpirun -n {ranks} --host 'a b' -x R={ranks}"});
  const std::vector<std::string> words = command_of(o, {"gpt2-nano", 2, 4}, "/a dir/aliquot", "m.jsonl");
  EXPECT_EQ(words[2], "exec mpirun -n 4 --host 'a b' -x R=4 \"$@\"");
  EXPECT_EQ(words[4], "/a dir/aliquot");
  EXPECT_EQ(std::ranges::count(words, "--ranks"), 1);
}

TEST(SweepOptions, RejectInvalidValues) {
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--models", "gpt2-nan"},
                                              {"--models", "gpt2-nano,,"},
                                              {"--stages", "4"},
                                              {"--ranks", "0"},
                                              {"--ranks", ""},
                                              {"--micro-batch", "none"},
                                              {"--zero-stage", "1"}}) {
    EXPECT_THROW(parsed(bad), UsageError) << joined(bad);
  }
}

RunRecord record_of(int64_t planned, int64_t measured) {
  RunRecord record;
  record.run = {{"world", {{"device", "host, 1 thread"}, {"memory_per_rank", 1000}}},
                {"plan", {{"memory", {{"peak", planned}}}}}};
  for (const double seconds : {9., 1., 3., 2.})
    record.steps.push_back({{"step", 1}, {"tokens_per_second", 6 / seconds}, {"step_seconds", seconds}});
  record.done = {{"planned", {{"parameters", 5}}},
                 {"measured", {{"parameters", 5}}},
                 {"planned_peak", planned},
                 {"measured_peak", measured},
                 {"system_bytes", 77}};
  return record;
}

TEST(SweepRow, HasTheResultsOfTheRun) {
  const SweepRow row = row_of({"gpt2-nano", 1, 2}, {}, record_of(60, 60), "");
  EXPECT_TRUE(row.ok());
  EXPECT_TRUE(row.plan_matches);
  EXPECT_EQ(row.step_seconds, 2);  // the median of all steps but the first
  EXPECT_EQ(row.limit_bytes, 1000);
  EXPECT_EQ(csv_line(row), "gpt2-nano,0,1,2,host,ok,60,60,77,3,2,,5,0,0,0,0,0,0");
  EXPECT_FALSE(row_of({"gpt2-nano", 1, 2}, {}, record_of(60, 61), "").plan_matches);
  const std::string header = csv_header();
  EXPECT_TRUE(
      header.starts_with("model,parameters,zero_stage,ranks,device,status,planned_peak,measured_peak,"
                         "system_bytes,tokens_per_second,step_seconds,reason,parameters_bytes,"));
  const std::string line = csv_line(row);
  EXPECT_EQ(std::ranges::count(header, ','), std::ranges::count(line, ','));
}

TEST(SweepRow, HasTheReasonIfThereAreNoResults) {
  RunRecord planned = record_of(60, 60);
  planned.steps.clear();
  planned.done = nullptr;
  const SweepRow full = row_of({"gpt2-nano", 0, 1}, {2, 0}, planned, "noise\naliquot: a, \"b\"\nmpirun: more\n");
  EXPECT_EQ(csv_line(full), "gpt2-nano,0,0,1,host,does not fit,60,,,,,\"a, \"\"b\"\"\",,,,,,,");
  const auto status = [](const ExitStatus& exit_status) { return row_of({}, exit_status, {}, "").status; };
  EXPECT_EQ(status({1, 0}), "refused");
  EXPECT_EQ(status({2, 0}), "unavailable");
  EXPECT_EQ(status({3, 0}), "failed");
  EXPECT_EQ(status({0, SIGKILL}), "killed");
  EXPECT_EQ(status({137, 0}), "killed");
  EXPECT_EQ(status({127, 0}), "exit 127");
  EXPECT_EQ(status({0, 0}), "no record");
  EXPECT_EQ(row_of({}, {127, 0}, {}, "sh: mpirun: not found\n").reason, "sh: mpirun: not found");
}

/// Returns rows of a sweep over the models, all ZeRO stages and 1 to 8 ranks. Rows of models that exceed the memory
/// have the status "does not fit".
std::vector<SweepRow> rows_of(const std::vector<std::pair<std::string, int64_t>>& models) {
  std::vector<SweepRow> rows;
  for (const int64_t ranks : {1, 2, 4, 8}) {
    for (const auto& [model, parameters] : models) {
      for (int stage = 0; stage < 4; ++stage) {
        SweepRow row = row_of({model, stage, ranks}, {}, record_of(16 * parameters / (1 + stage * (ranks - 1)), 0), "");
        row.parameters = parameters;
        row.measured_peak_bytes = row.planned_peak_bytes;
        row.limit_bytes = (int64_t{24} << 30) / ranks;
        if (16 * parameters > *row.limit_bytes) {
          row.status = "does not fit";
          row.measured_peak_bytes.reset();
        }
        rows.push_back(row);
      }
    }
  }
  return rows;
}

TEST(MemoryPicture, HasPanelsForRanksLinesForZeroStagesAndMarksForRuns) {
  for (const bool near : {true, false}) {
    const auto rows = near ? rows_of({{"gpt2-124m", 124'000'000}, {"gpt2-1.5b", 1'500'000'000}})
                           : rows_of({{"gpt2-nano", 800'000}, {"a", 2'000'000}, {"gpt2-1.5b", 1'500'000'000}});
    const std::string svg = memory_picture(rows, "subtitle <&>");
    EXPECT_EQ(xml_problem(svg), "");
    const auto count = [&svg](const std::string& text) {
      size_t found = 0;
      for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
      return found;
    };
    EXPECT_EQ(count("<polyline"), 16u);
    EXPECT_EQ(count("iB, measured "), static_cast<size_t>(std::ranges::count_if(rows, &SweepRow::ok)));
    EXPECT_EQ(count("<title>"), 1 + rows.size());
    EXPECT_EQ(count("machine memory per rank: "), 4u);
    for (const char* text : {">1 rank<", ">8 ranks<", ">ZeRO 3<", ">gpt2-1.5b<", "&lt;&amp;&gt;"})
      EXPECT_GE(count(text), 1u) << text;
    EXPECT_EQ(count("nan"), near ? 0u : count("gpt2-nano"));
    EXPECT_EQ(count("inf"), 0u);
  }
}

/// Returns the height of the text of the limit, relative to the line of the limit. Heights grow downwards.
double height_of_limit(const std::vector<int64_t>& planned, int64_t limit) {
  std::vector<SweepRow> rows;
  for (size_t i = 0; i < planned.size(); ++i) {
    SweepRow row = row_of({"m" + std::to_string(i), 0, 1}, {}, record_of(planned[i], 0), "");
    row.parameters = static_cast<int64_t>(i + 1) * 10'000'000;
    row.limit_bytes = limit;
    rows.push_back(row);
  }
  const std::string svg = memory_picture(rows, "");
  const auto number_before = [&svg](size_t at, const std::string& name) {
    const size_t begin = svg.rfind(" " + name + "=\"", at) + name.size() + 3;
    return std::stod(svg.substr(begin));
  };
  const size_t text = svg.find("machine memory"), line = svg.rfind("stroke-width=\"1.4\"", text);
  return number_before(text, "y") - number_before(line, "y1");
}

TEST(MemoryPicture, TheTextOfTheLimitAvoidsTheLines) {
  EXPECT_LT(height_of_limit({57'000'000, 58'000'000}, 60'000'000), 0);  // the lines are below the limit
  EXPECT_GT(height_of_limit({61'000'000, 62'000'000}, 60'000'000), 0);  // the lines are above the limit
}

TEST(MemoryPicture, CanBeDrawnWithoutResults) {
  EXPECT_EQ(xml_problem(memory_picture({}, "")), "");
  SweepRow refused;
  refused.status = "refused";
  const std::string svg = memory_picture({refused}, "");
  EXPECT_EQ(xml_problem(svg), "");
  EXPECT_NE(svg.find("No run was planned."), std::string::npos);
}

}  // namespace
}  // namespace aliquot::test
