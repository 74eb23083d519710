// Tests aliquot train --mesh, and the printed form of aliquot plan --mesh auto.
#include <algorithm>
#include <regex>

#include "tests/apps/train/pipeline_runs.h"

namespace aliquot {
namespace {

using pipeline_runs::words_of;
using test::CommandResult;

const std::string kRun =
    "train --steps 2 --model llama-nano --layers 3 --width 32 --heads 4 --kv-heads 2 --hidden 64 --context 16 "
    "--threads 1 ";

CommandResult run(const std::string& options) { return test::run_aliquot(words_of(kRun + options)); }

/// Returns the mesh of the line "mesh  PxRxSxT: the fastest of ..".
std::string chosen_mesh(const std::string& output) {
  std::smatch found;
  const bool matches = std::regex_search(
      output, found, std::regex("mesh:? +([0-9]+x[0-9]+x[0-9]+x[0-9]+): the fastest of [0-9]+ meshes"));
  return matches ? found[1].str() : "";
}

TEST(MeshCommand, TrainsOnAGivenMesh) {
  const CommandResult result = run("--mesh 2x1x2x2 --global-batch 16");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("8 ranks"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("2 pipeline stages, tensor groups of 2 ranks"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("agree to the byte"), std::string::npos) << result.out;
}

TEST(MeshCommand, TrainsOnTheFastestMesh) {
  const CommandResult result = run("--mesh auto --ranks 8 --global-batch 16");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string mesh = chosen_mesh(result.out);
  ASSERT_FALSE(mesh.empty()) << result.out;
  EXPECT_NE(result.out.find("256 tokens a step"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("agree to the byte"), std::string::npos) << result.out;
}

/// The options that a dry run prints name the chosen mesh, and start the same run.
TEST(MeshCommand, ADryRunPrintsTheChoiceAsOptions) {
  const test::TemporaryDirectory directory;
  const CommandResult dry = run("--mesh auto --ranks 8 --pipeline 2 --tensor 2 --global-batch 16 --dry-run");
  ASSERT_EQ(dry.code, 0) << dry.err;
  const std::string mesh = chosen_mesh(dry.out);
  ASSERT_FALSE(mesh.empty()) << dry.out;
  EXPECT_TRUE(mesh == "2x1x2x2" || mesh == "2x2x1x2") << mesh;
  EXPECT_NE(dry.out.find("mesh = " + mesh + "\n"), std::string::npos) << dry.out;
  const std::string config = directory.path() / "run.ini";
  std::ofstream(config) << dry.out.substr(0, dry.out.find("\n\n"));
  const CommandResult again = test::run_aliquot({"train", "--config", config});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("keep has no effect"), std::string::npos) << "a default that the dry run printed";
  EXPECT_NE(again.out.find("2 pipeline stages, tensor groups of 2 ranks"), std::string::npos) << again.out;
  const CommandResult other = test::run_aliquot({"train", "--config", config, "--mesh", "1x1x2x1"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.out.find("2 ranks"), std::string::npos) << other.out;
  const CommandResult search = test::run_aliquot({"train", "--config", config, "--mesh", "auto"});
  EXPECT_EQ(search.code, 0) << search.err;
  EXPECT_TRUE(std::regex_search(search.out, std::regex("the fastest of [1-9][0-9] meshes"))) << search.out;
}

TEST(MeshCommand, AllProcessesTakeTheSameMesh) {
  if (!test::has_mpi()) GTEST_SKIP() << "needs mpirun";
  const CommandResult result =
      test::run_aliquot_under_mpirun(4, words_of(kRun + "--mesh auto --tensor 2 --global-batch 16"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(chosen_mesh(result.out).empty()) << result.out;
  EXPECT_NE(result.out.find("tensor groups of 2 ranks"), std::string::npos) << result.out;
  const CommandResult given = test::run_aliquot_under_mpirun(4, words_of(kRun + "--mesh 2x1x2x2 --global-batch 16"));
  EXPECT_NE(given.code, 0);
  EXPECT_NE(given.err.find("--mesh 2x1x2x2 has 8 ranks, but the launcher started 4 ranks"), std::string::npos)
      << given.err;
}

TEST(MeshCommand, RefusesAMemoryInWhichNoMeshFits) {
  const CommandResult result = run("--mesh auto --ranks 2 --memory-budget 10KiB");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--mesh auto: no mesh fits in 10.0 KiB of --memory-budget"), std::string::npos)
      << result.err;
}

TEST(MeshCommand, APlanWithoutAMeshThatFitsIsUnavailable) {
  const std::string plan = "plan --model llama-nano --ranks 8 --mesh auto --machine dgx-h100 --device-memory 100KiB ";
  const CommandResult text = test::run_aliquot(words_of(plan));
  EXPECT_EQ(text.code, 2);
  EXPECT_NE(text.out.find("no mesh fits in 100 KiB of --device-memory"), std::string::npos) << text.out;
  const CommandResult json = test::run_aliquot(words_of(plan + "--format json"));
  EXPECT_EQ(json.code, 2);
  EXPECT_TRUE(nlohmann::json::parse(json.out).at("meshes").empty()) << json.out;
  EXPECT_NE(json.err.find("no mesh fits in 100 KiB of --device-memory"), std::string::npos) << json.err;
}

TEST(MeshCommand, PlansAGivenMesh) {
  const std::string model = "plan --model llama-nano --micro-batch 1 ";
  const CommandResult mesh = test::run_aliquot(words_of(model + "--mesh 2x2x2x2 --global-batch 16 --format json"));
  const CommandResult options = test::run_aliquot(
      words_of(model + "--ranks 16 --pipeline 2 --replicas 2 --tensor 2 --accumulate 4 --format json"));
  ASSERT_EQ(mesh.code, 0) << mesh.err;
  EXPECT_EQ(mesh.out, options.out);
  const CommandResult refused = test::run_aliquot(words_of(model + "--mesh 2x2x2x2 --ranks 8"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("--mesh 2x2x2x2 contradicts --ranks 8"), std::string::npos) << refused.err;
}

/// With fixed rates, the table has the same numbers on every machine.
TEST(MeshCommand, PrintsATableOfMeshes) {
  const CommandResult result = test::run_aliquot(words_of(
      "plan --model llama-8b --layers 4 --ranks 16 --mesh auto --machine dgx-h100 --device-memory 24GiB "
      "--global-batch 32 --zero-stage 3 --micro-batch 1 --pipeline-schedule 1f1b --gather-for pass --recompute none"));
  ASSERT_EQ(result.code, 0) << result.err;
  std::ifstream file(ALIQUOT_GOLDEN_MESHES);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(result.out, golden) << result.out;
  for (const std::string& line : {std::string("mesh PxRxSxT"), std::string("limited by"), std::string("best: --mesh ")})
    EXPECT_NE(result.out.find(line), std::string::npos) << line;
}

TEST(MeshCommand, WritesJsonAndCsv) {
  const std::string plan =
      "plan --model llama-nano --ranks 8 --mesh auto --machine dgx-h100 --global-batch 32 --micro-batch 2 --format ";
  const CommandResult json = test::run_aliquot(words_of(plan + "json")),
                      csv = test::run_aliquot(words_of(plan + "csv"));
  ASSERT_EQ(json.code, 0) << json.err;
  ASSERT_EQ(csv.code, 0) << csv.err;
  const auto meshes = nlohmann::json::parse(json.out).at("meshes");
  EXPECT_EQ(meshes.size(), 8u);
  EXPECT_LE(meshes[0]["step_seconds"], meshes[1]["step_seconds"]);
  EXPECT_EQ(std::ranges::count(csv.out, '\n'), 9);
  EXPECT_EQ(csv.out.find("mesh,pipeline,replicas,shards,tensor,options,rank_bytes"), 0u) << csv.out;
}

TEST(MeshCommand, RefusesOptionsThatNeedOnePlan) {
  const CommandResult result = test::run_aliquot(words_of("plan --ranks 8 --mesh auto --trace step.json"));
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("--trace needs one plan, and --mesh auto compares several"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace aliquot
