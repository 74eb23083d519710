// Tests what aliquot plan prints and writes about pipelines, and the pipeline that aliquot train records.
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "tests/apps/train/pipeline_runs.h"
#include "tests/support/well_formed.h"

namespace aliquot {
namespace {

using pipeline_runs::words_of;
using Json = nlohmann::ordered_json;

/// Eight uses: an embedding, five blocks, a norm and the head.
const std::string kModel = "--model llama-nano --tied off --layers 5 --width 16 --heads 2 --context 16";
constexpr int kUses = 8;

Json planned(const std::string& options) {
  const test::CommandResult result = test::run_aliquot(words_of("plan --format json " + options));
  EXPECT_EQ(result.code, 0) << result.err;
  return Json::parse(result.out).at("plans").at(0);
}

/// Writes a profile in which every use takes 1 s in forward and 2 s in backward.
void write_equal_profile(const std::string& path) {
  Json titles = Json::array(), starts = Json::array(), ends = Json::array();
  for (int i = 0; i < 2 * kUses; ++i) {
    const double start = i < kUses ? i : kUses + 2 * (i - kUses);
    titles.push_back(i < kUses ? "forward u" : "backward u");
    starts.push_back(start);
    ends.push_back(start + (i < kUses ? 1 : 2));
  }
  std::ofstream file(path);
  const Json options = {{"ranks", 1}, {"micro-batch", 1}, {"sequence", 16}};
  file << Json{{"run", {{"options", options}, {"plan", {{"step", {{"titles", titles}}}}}}}} << "\n";
  for (int step = 1; step <= 3; ++step) file << Json{{"step", step}, {"step_seconds", 3 * kUses}} << "\n";
  const Json times = {{"start_seconds", starts}, {"end_seconds", ends}, {"step_seconds", 3 * kUses}};
  file << Json{{"done", {{"step", times}}}} << "\n";
}

/// With equal passes, the simulated bubble is that of the formula, except for transfers and updates.
TEST(PlanPipeline, SimulatedBubbleMatchesTheFormula) {
  const test::TemporaryDirectory directory;
  const std::string profile = directory.path() / "profile.jsonl";
  write_equal_profile(profile);
  struct Case {
    std::string options;
    double formula;
  };
  for (const auto& [options, formula] :
       {Case{"--pipeline 4 --ranks 4 --pipeline-schedule 1f1b --accumulate 8", 3.0 / 11},
        Case{"--pipeline 2 --ranks 2 --pipeline-schedule gpipe --accumulate 4", 1.0 / 5},
        Case{"--pipeline 4 --ranks 4 --pipeline-schedule interleaved --accumulate 8", 3.0 / 19}}) {
    const Json plan = planned(kModel + " --micro-batch 1 --profile " + profile + " " + options);
    EXPECT_NEAR(plan["formula_bubble_share"].get<double>(), formula, 1e-12) << options;
    EXPECT_NEAR(plan["bubble_share"].get<double>(), formula, 0.01) << options;
    double sum = 0;
    for (const Json& stage : plan["stages"]) {
      EXPECT_EQ(stage["idle_share"], stage["bubble_share"]);
      EXPECT_NEAR(stage["compute_seconds"].get<double>(),
                  (1 - stage["bubble_share"].get<double>()) * plan["step_seconds"].get<double>(), 1e-6);
      sum += stage["bubble_share"].get<double>();
    }
    EXPECT_NEAR(sum / static_cast<double>(plan["stages"].size()), plan["bubble_share"].get<double>(), 1e-12);
  }
}

TEST(PlanPipeline, StagesHaveTheirPartOfTheModel) {
  const Json plan = planned(kModel + " --ranks 4 --pipeline 4 --accumulate 8 --pipeline-cut 3,1,2,2");
  std::vector<int> uses, in_flight;
  int64_t parameters = 0;
  for (const Json& stage : plan["stages"]) {
    uses.push_back(stage["uses"]);
    in_flight.push_back(stage["activations_in_flight"]);
    parameters += stage["parameters"].get<int64_t>();
    EXPECT_GT(stage["transfer_share"].get<double>(), 0);
    EXPECT_LT(stage["transfer_share"].get<double>(), 1);
    EXPECT_EQ(stage["node_link_share"].get<double>(), 0);
  }
  EXPECT_EQ(uses, (std::vector<int>{3, 1, 2, 2}));
  EXPECT_EQ(in_flight, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(parameters, plan["parameters"].get<int64_t>());
}

TEST(PlanPipeline, ActivationsInFlightDependOnTheOrder) {
  const auto in_flight = [](const std::string& options) {
    std::vector<int> counts;
    const Json plan = planned("--layers 8 --width 16 --heads 2 --ranks 4 --pipeline 4 --accumulate 8 " + options);
    for (const Json& stage : plan["stages"]) counts.push_back(stage["activations_in_flight"]);
    return counts;
  };
  EXPECT_EQ(in_flight("--pipeline-schedule 1f1b --tied on"), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(in_flight("--pipeline-schedule gpipe"), (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(in_flight("--pipeline-schedule interleaved"), (std::vector<int>{11, 9, 7, 5}));
}

/// The share of the link between nodes is the time to send the bytes that leave the node.
TEST(PlanPipeline, LinkBetweenNodesIsBusyWhileItSends) {
  const test::TemporaryDirectory directory;
  const std::string machine = directory.path() / "machine.json";
  std::ofstream(machine) << R"({"between_nodes": {"bytes_per_second": 1e8, "latency_seconds": 1e-5}})";
  const Json plan = planned(kModel + " --ranks 2 --ranks-per-node 1 --pipeline 2 --accumulate 4 --machine " + machine);
  const double busy = plan["stages"][0]["node_link_share"].get<double>() * plan["step_seconds"].get<double>();
  EXPECT_NEAR(busy, plan["crossing_bytes"].get<double>() / 1e8, 1e-12);
  EXPECT_GT(busy, 0);
}

TEST(PlanPipeline, TableHasOneRowPerPipelineStage) {
  const std::string common = "plan --layers 8 --width 16 --heads 2 --ranks 4 --pipeline 4 --accumulate 8";
  const test::CommandResult plan = test::run_aliquot(words_of(common + " --pipeline-schedule 1f1b"));
  ASSERT_EQ(plan.code, 0) << plan.err;
  for (const char* text : {"pipeline stage  uses  parameters       peak     in bytes  in flight    compute   bubble",
                           "\n  3  ", "simulated on host: ", " s per step",
                           "bubble of the pipeline: ", "by the formula (p - 1) / (m + p - 1): 27.3 %"})
    EXPECT_NE(plan.out.find(text), std::string::npos) << text << "\n" << plan.out;
  std::istringstream lines(plan.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  const std::string interleaved = common + " --pipeline-schedule interleaved";
  EXPECT_NE(test::run_aliquot(words_of(interleaved)).out.find("(p - 1) / (v m + p - 1): 15.8 %"), std::string::npos);
  // 6 micro-batches are not a multiple of 4 pipeline stages, and an order from a file has no formula.
  EXPECT_EQ(test::run_aliquot(words_of(interleaved + " --accumulate 6")).out.find("formula"), std::string::npos);
  const test::TemporaryDirectory directory;
  const std::string order = directory.path() / "order";
  ASSERT_EQ(test::run_aliquot(words_of(common + " --pipeline-order " + order)).code, 0);
  const test::CommandResult custom = test::run_aliquot(words_of(common + " --pipeline-order-from " + order));
  EXPECT_NE(custom.out.find("bubble of the pipeline"), std::string::npos) << custom.err;
  EXPECT_EQ(custom.out.find("formula"), std::string::npos) << custom.out;
  const test::CommandResult compared = test::run_aliquot(words_of(common + " --stages all"));
  EXPECT_NE(compared.out.find("\n  bubble  "), std::string::npos) << compared.out;
}

TEST(PlanPipeline, WithoutAPipelineNothingIsSimulatedByDefault) {
  const test::CommandResult plan = test::run_aliquot(words_of("plan --layers 2 --ranks 2"));
  EXPECT_EQ(plan.out.find("simulated"), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find("bubble"), std::string::npos) << plan.out;
  EXPECT_FALSE(planned("--layers 2 --ranks 2").contains("bubble_share"));
}

/// The events of a trace by process, and the names of the processes.
struct Trace {
  std::map<int, std::string> names;
  std::map<int, std::vector<Json>> boxes;
};

Trace read_trace(const std::string& path) {
  Trace trace;
  std::ifstream file(path);
  const Json events = Json::parse(file)["traceEvents"];
  for (const Json& event : events) {
    if (event["name"] == "process_name") trace.names[event["pid"]] = event["args"]["name"];
    if (event["ph"] == "X") trace.boxes[event["pid"]].push_back(event);
  }
  return trace;
}

/// All pipeline stages have the same clock: a send and its receive have equal times, and so have the norms.
TEST(PlanPipeline, TraceHasAllPipelineStagesOnOneClock) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "trace.json";
  planned(kModel + " --ranks 6 --pipeline 3 --accumulate 4 --trace " + path);
  Trace trace = read_trace(path);
  EXPECT_EQ(trace.names,
            (std::map<int, std::string>{{0, "pipeline stage 0"}, {1, "pipeline stage 1"}, {2, "pipeline stage 2"}}));
  const auto start_of = [&](int stage, const std::string& verb, int micro_batch) {
    for (const Json& box : trace.boxes[stage]) {
      if (box["cat"] == verb && (micro_batch < 0 || box["args"]["micro_batch"] == micro_batch))
        return box["ts"].get<double>();
    }
    ADD_FAILURE() << verb;
    return 0.0;
  };
  for (const int stage : {0, 1}) {
    EXPECT_NEAR(start_of(stage, "norm", -1), start_of(2, "norm", -1), 2e-3);
    for (int m = 0; m < 4; ++m) {
      EXPECT_NEAR(start_of(stage, "send", m), start_of(stage + 1, "receive", m), 2e-3);
      EXPECT_NEAR(start_of(stage, "receive-gradient", m), start_of(stage + 1, "send-gradient", m), 2e-3);
    }
  }
}

/// Recorded times may be this late, because a rank may be interrupted before it reads the clock.
constexpr double kClockSeconds = 2e-4;

/// Checks the passes of a pipeline: each micro-batch runs forward and backward once on each pipeline stage, and forward
/// runs on the next pipeline stage only after it ended on this one.
void expect_complete(const Json& pipeline, int stages, int micro_batches) {
  ASSERT_EQ(pipeline["stages"].size(), static_cast<std::size_t>(stages));
  EXPECT_EQ(pipeline["micro_batches"], micro_batches);
  std::map<int, double> forward_end;  // on the previous pipeline stage, by micro-batch
  for (const Json& stage : pipeline["stages"]) {
    std::map<std::string, std::set<int>> passes;
    std::map<int, double> own_end;
    double end = stage["begin_seconds"].get<double>();
    for (std::size_t i = 0; i < stage["passes"].size(); ++i) {
      const int micro_batch = stage["micro_batch"][i];
      const double start = stage["start_seconds"][i];
      const std::string pass = stage["passes"][i];
      EXPECT_GE(start, end - 1e-6) << "passes must not overlap";
      end = stage["end_seconds"][i];
      EXPECT_GE(end, start);
      if (pass == "forward" && !passes[pass].contains(micro_batch) && !forward_end.empty()) {
        EXPECT_GE(start, forward_end.at(micro_batch) - kClockSeconds);
      }
      if (pass == "forward") own_end[micro_batch] = end;
      passes[pass].insert(micro_batch);
    }
    for (const char* pass : {"forward", "backward"})
      EXPECT_EQ(passes[pass].size(), static_cast<std::size_t>(micro_batches));
    EXPECT_EQ(passes.count("update"), 1u);
    EXPECT_GT(stage["bubble_share"].get<double>(), 0);
    EXPECT_LT(stage["bubble_share"].get<double>(), 1);
    forward_end = own_end;
  }
}

std::string page_of(const std::vector<std::string>& files) {
  const test::TemporaryDirectory directory;
  const std::string page = directory.path() / "page.html";
  std::vector<std::string> words = {"report"};
  words.insert(words.end(), files.begin(), files.end());
  words.insert(words.end(), {"--out", page});
  const test::CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string text = test::read_file(page);
  EXPECT_EQ(test::xml_problem(text), "");
  return text;
}

TEST(PlanPipeline, ReportDrawsASimulatedStep) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "plan.jsonl";
  planned(kModel + " --ranks 4 --pipeline 4 --accumulate 8 --metrics " + path);
  std::ifstream file(path);
  expect_complete(Json::parse(file)["plan"]["pipeline"], 4, 8);
  const std::string page = page_of({path});
  for (const char* text :
       {"plan, one simulated step", "1f1b, 4 pipeline stages, 8 micro-batches; bubble ",
        "backward, micro-batch 7: ", "<th>machine</th>", "<td>host</td>", ">idle</text>", "pipeline stage 3: idle in "})
    EXPECT_NE(page.find(text), std::string::npos) << text;
}

TEST(PlanPipeline, ReportListsPlansWithoutAPipeline) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "plan.jsonl";
  ASSERT_EQ(test::run_aliquot(words_of("plan --layers 1 --ranks 2 --stages 1,3 --metrics " + path)).code, 0);
  const std::string page = page_of({path});
  EXPECT_NE(page.find("plan, ZeRO stage 3"), std::string::npos);
  EXPECT_EQ(page.find("Pipeline of one step"), std::string::npos);
  const test::CommandResult nowhere = test::run_aliquot(words_of("plan --layers 1 --metrics /nowhere/plan.jsonl"));
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("--metrics /nowhere/plan.jsonl: the file cannot be written"), std::string::npos);
}

/// The metrics, the trace and the report of a run have all pipeline stages.
TEST(PlanPipeline, TrainRecordsThePipelineOfAStep) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "run.jsonl", trace_path = directory.path() / "trace.json";
  const std::string train =
      "train --quiet --threads 1 --micro-batch 1 --steps 4 --accumulate 4 --ranks 4 --pipeline 2 ";
  const test::CommandResult result =
      test::run_aliquot(words_of(train + kModel + " --metrics " + path + " --trace " + trace_path));
  ASSERT_EQ(result.code, 0) << result.err;
  Json done;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) done = Json::parse(line);
  expect_complete(done["done"]["pipeline"], 2, 4);
  EXPECT_EQ(done["done"]["stages"].size(), 2u);
  EXPECT_EQ(read_trace(trace_path).names, (std::map<int, std::string>{{0, "rank 0, pipeline stage 0"},
                                                                      {1, "rank 1, pipeline stage 0"},
                                                                      {2, "rank 2, pipeline stage 1"},
                                                                      {3, "rank 3, pipeline stage 1"}}));
  const std::string page = page_of({path});
  EXPECT_NE(page.find(">run, one measured step</text>"), std::string::npos);
  EXPECT_NE(page.find(">1f1b, 2 pipeline stages, 4 micro-batches"), std::string::npos);
  EXPECT_NE(page.find(">forward-0</text>"), std::string::npos) << "the lanes of transfers have rows";
}

TEST(PlanPipeline, ReportNamesARunThatRecordedNoPipeline) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "run.jsonl";
  const std::string train =
      "train --quiet --threads 1 --micro-batch 1 --steps 1 --accumulate 2 --ranks 2 --pipeline 2 ";
  ASSERT_EQ(test::run_aliquot(words_of(train + kModel + " --metrics " + path)).code, 0);
  EXPECT_NE(page_of({path}).find("no pipeline was recorded"), std::string::npos);
}

}  // namespace
}  // namespace aliquot
