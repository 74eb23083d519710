// Tests what aliquot doctor --explain reports if one pipeline stage dies or is late. It must name the rank and the
// pipeline stage that caused the failure, not the pipeline stages that wait for them.
#include <array>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iterator>
#include <regex>
#include <sstream>

#include "apps/explain/explain.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream all(text);
  return {std::istream_iterator<std::string>(all), {}};
}

constexpr const char* kTrain =
    "train --steps 4 --layers 4 --width 16 --heads 2 --vocab 251 --context 16 --micro-batch 1 --threads 1 --quiet "
    "--tied off --global-batch 8 --timeout 1 ";

/// Trains a small model with a fault, and explains the flight records.
class ExplainPipeline : public testing::Test {
 protected:
  /// Runs the training, and returns what it wrote to standard error.
  std::string train(int ranks, const std::string& options, const std::string& fault, bool launched,
                    const std::vector<std::string>& variables = {}) const {
    std::vector<std::string> environment{"ALIQUOT_FAULT=" + fault, "ALIQUOT_FLIGHT_DIR=" + directory_.path().string()};
    environment.insert(environment.end(), variables.begin(), variables.end());
    std::vector<std::string> words = words_of(kTrain + options);
    if (launched) return test::run_aliquot_under_mpirun(ranks, words, environment).err;
    words.insert(words.end(), {"--ranks", std::to_string(ranks)});
    words.insert(words.begin(), test::aliquot_program());
    return test::run_program("/usr/bin/env", words, environment).err;
  }
  std::string explained() const {
    const test::CommandResult result = test::run_aliquot({"doctor", "--explain", directory_.path().string()});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  test::TemporaryDirectory directory_;
};

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

TEST_F(ExplainPipeline, NamesTheLateStageOnThreads) {
  const std::string transfer = "(transfer|barrier)[^;]* of the pair of pipeline stages [0-3] and [0-3];";
  // With gpipe, stages 2 and 3 do not need stage 1 after its last forward. So if a backward is late, they may wait in
  // the norm as long as stage 0 waits in its transfer, and either deadline may be the first.
  const std::string norm = "all-reduce [^;]*\\(norm, step 2\\);";
  const std::array<std::array<std::string, 4>, 3> cases = {{{"1f1b", "backward", "h.1", transfer},
                                                            {"gpipe", "forward", "wpe", transfer},
                                                            {"gpipe", "backward", "h.1", transfer + "|" + norm}}};
  for (const auto& [schedule, pass, unit, expected] : cases) {
    const std::string errors =
        train(4, "--pipeline 4 --pipeline-schedule " + schedule, "rank=1,step=2,op=" + pass + ",kind=slow:2s", false);
    const std::string text = explained();
    expect_contains(text, {"\nFirst cause: rank 1 (pipeline stage 1).\nThe mesh has 4 pipeline stages:\n",
                           fmt::format("  rank 1 ran {} {} (micro-batch 0, step 2) for 2.", pass, unit),
                           "  pipeline stage 0: rank 0 waited for rank 1 (pipeline stage 1): transfer of 1024 bytes "
                           "(pipeline stage 1 to 0, m0, ",
                           "  pipeline stage 1: rank 1 is the first cause.\n", "\nrank 2 (pipeline stage 2): "});
    EXPECT_TRUE(matches(errors, "waited 1 s in (" + expected + ")")) << schedule << " " << pass << "\n" << errors;
  }
}

TEST_F(ExplainPipeline, NamesTheLateStageUnderMpirun) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  for (const std::string ranks_per_node : {"4", "1"}) {
    const std::string errors = train(4, "--pipeline 4", "rank=2,step=2,op=forward,kind=slow:2s", true,
                                     {"ALIQUOT_RANKS_PER_NODE=" + ranks_per_node});
    const std::string text = explained();
    expect_contains(text,
                    {"\nFirst cause: rank 2 (pipeline stage 2).\n", "  pipeline stage 2: rank 2 is the first cause.\n",
                     "  pipeline stage 3: rank 3 waited for rank 2 (pipeline stage 2): "});
    expect_contains(errors, {" of the pair of pipeline stages "});
  }
}

TEST_F(ExplainPipeline, NamesTheKilledRankOfAStage) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  train(4, "--pipeline 2 --zero-stage 3", "rank=3,step=2,op=backward,kind=kill", true);
  const std::string text = explained();
  expect_contains(text, {"First cause: rank 3 (pipeline stage 1).\n",
                         "  pipeline stage 1: rank 3 is the first cause, and left no record.\n",
                         "\nrank 2 (pipeline stage 1, shard 0): "});
}

TEST_F(ExplainPipeline, NamesTheRankThatFailed) {
  train(4, "--pipeline 2 --replicas 2", "rank=1,step=2,op=update,kind=throw", false);
  const std::string text = explained();
  expect_contains(text,
                  {"First cause: rank 1 (pipeline stage 0).\n", "  pipeline stage 0: rank 1 is the first cause.\n",
                   "\nrank 1 (pipeline stage 0, replica 1): ", ": rank 1 failed: "});
}

/// Writes the records of a pipeline of four ranks. Two neighboring pipeline stages have one group
/// for each direction.
class RecordedPipeline {
 public:
  RecordedPipeline() {
    for (int rank = 0; rank < 4; ++rank) {
      FlightRecord& record = records_.emplace_back();
      record.run = "0123";
      record.rank = rank;
      record.rank_count = 4;
      record.why = "rank 0 waited 10 s";
      record.written = 20;
      record.mesh = {{4, 1, 1, 1}, {rank, 0, 0, 0}};
      for (int first = std::max(rank - 1, 0); first <= std::min(rank, 2); ++first) {
        for (const bool forward : {true, false}) {
          record.groups.push_back({first, first + 1});
          record.group_names.push_back(fmt::format("pair of pipeline stages {} and {}", first, first + 1));
          add(rank, first, forward, 1, 2);
        }
      }
    }
  }
  FlightRecord& of(int rank) { return records_[static_cast<size_t>(rank)]; }
  /// Records that the rank entered its next transfer between the pipeline stages `first` and `first` + 1.
  void add(int rank, int first, bool forward, double begun, double ended = -1) {
    FlightRecord& record = of(rank);
    FlightEntry entry;
    entry.number = record.entries.size() + 1;
    entry.group = 2 * (first - std::max(rank - 1, 0)) + (forward ? 0 : 1);
    entry.lane = forward ? Lane::kForward0 : Lane::kBackward0;
    entry.sequence = ended < 0 ? 2 : 1;
    entry.what = describe_barrier({});
    entry.issued = entry.begun = begun;
    entry.ended = ended;
    record.entries.push_back(entry);
  }
  void ran(int rank, double begun, double ended) {
    of(rank).model_code.push_back({"backward h.1", 0, 3, begun, ended});
  }
  std::string explained() const { return explain(records_); }

 private:
  std::vector<FlightRecord> records_;
};

/// Rank 2 computes for 10 s. Meanwhile its receive lane waits for rank 1, and rank 1 waits for rank 2.
RecordedPipeline with_late_rank_2() {
  RecordedPipeline pipeline;
  pipeline.add(0, 0, false, 10.2);
  pipeline.add(1, 1, false, 10);
  pipeline.add(2, 1, true, 9.5);
  pipeline.add(3, 2, true, 10.1);
  for (const int rank : {0, 1, 3}) pipeline.ran(rank, 9, 9.2);
  pipeline.ran(2, 9.6, 19.99);
  return pipeline;
}

TEST(ExplainPipelineRecords, LateRankIsTheCauseAlthoughItsLaneWaits) {
  expect_contains(
      with_late_rank_2().explained(),
      {"Rank 2 (pipeline stage 2) never reached collective #2 of the forward-0 lane, barrier of the pair of pipeline "
       "stages 2 and 3, where rank 3 (pipeline stage 3) waited.\n",
       "  rank 2 ran backward h.1 (micro-batch 0, step 3) for 10.4 s.\nFirst cause: rank 2 (pipeline stage 2).\n",
       "  pipeline stage 0: rank 0 waited for rank 1 (pipeline stage 1), which also waited: barrier.\n"
       "  pipeline stage 1: rank 1 waited for rank 2 (pipeline stage 2): barrier.\n"
       "  pipeline stage 2: rank 2 is the first cause.\n"
       "  pipeline stage 3: rank 3 waited for rank 2 (pipeline stage 2): barrier.\n"});
}

/// Rank 2 is late because of a long computation. Then it waits in another transfer until its deadline.
TEST(ExplainPipelineRecords, LateRankThatThenWaitsIsTheCause) {
  RecordedPipeline pipeline = with_late_rank_2();
  pipeline.add(2, 2, false, 19.995);
  expect_contains(pipeline.explained(), {"First cause: rank 2 (pipeline stage 2).\n"});
}

/// Two ranks on different nodes take part in a transfer. If one of them gives up, the transfer does not end on the
/// other rank.
TEST(ExplainPipelineRecords, RankThatEntersAnAbandonedCollectiveIsLate) {
  RecordedPipeline pipeline = with_late_rank_2();
  for (const int first : {1, 2}) pipeline.add(2, first, first == 2, 19.995);
  pipeline.of(2).model_code.clear();
  expect_contains(
      pipeline.explained(),
      {"Rank 2 (pipeline stage 2) reached collective #2 of the ", "First cause: rank 2 (pipeline stage 2).\n",
       "  pipeline stage 3: rank 3 waited for rank 2 (pipeline stage 2): barrier.\n"});
}

/// The first execution of model code on a machine may take long. The execution is not the cause of the failure if the
/// rank then waited as long as the other ranks.
TEST(ExplainPipelineRecords, LongExecutionBeforeTheWaitIsNoCause) {
  RecordedPipeline pipeline = with_late_rank_2();
  pipeline.of(1).model_code.insert(pipeline.of(1).model_code.begin(), {"forward h.0", 0, 3, 0.5, 8.5});
  expect_contains(pipeline.explained(), {"First cause: rank 2 (pipeline stage 2).\n"});
}

TEST(ExplainPipelineRecords, RankThatFailedItselfIsTheCauseThoughItWaits) {
  RecordedPipeline pipeline = with_late_rank_2();
  pipeline.of(2).model_code.clear();
  for (const int rank : {0, 1, 2, 3}) pipeline.of(rank).why = "rank 2 failed: the disk is gone";
  expect_contains(pipeline.explained(), {"First cause: rank 2 (pipeline stage 2).\n"});
}

/// Records of older versions do not list executions of model code. Without them, nothing shows that rank 2 was
/// computing. The records show only that ranks 1 and 2 wait for each other.
TEST(ExplainPipelineRecords, CycleOfWaitsNamesNoCause) {
  RecordedPipeline pipeline = with_late_rank_2();
  for (const int rank : {0, 1, 2, 3}) pipeline.of(rank).model_code.clear();
  const std::string text = pipeline.explained();
  expect_contains(text, {"Deadlock: the ranks wait for one another.\n", "The mesh has 4 pipeline stages:\n"});
  EXPECT_EQ(text.find("First cause"), std::string::npos) << text;
}

/// Records are untrusted input, so the records of one run may contain different meshes.
TEST(ExplainPipelineRecords, DifferentMeshesAreIgnored) {
  RecordedPipeline pipeline = with_late_rank_2();
  pipeline.of(3).mesh->counts = {2, 2, 1, 1};
  EXPECT_EQ(pipeline.explained().find("pipeline stage 2:"), std::string::npos);
  pipeline = with_late_rank_2();
  pipeline.of(3).rank_count = 5;
  EXPECT_EQ(pipeline.explained().find("pipeline stage 2:"), std::string::npos);
}

}  // namespace
}  // namespace aliquot
