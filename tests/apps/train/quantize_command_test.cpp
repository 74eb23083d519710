// Runs aliquot train --quantize and checks digests, losses, planned traffic and rejected options.
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const Words kTwoNodes = {"ALIQUOT_RANKS_PER_NODE=2"};

test::CommandResult train(Words words, bool processes = false) {
  const Words train = {"train", "--threads", "1", "--quiet"};
  words.insert(words.begin(), train.begin(), train.end());
  if (!processes) words.insert(words.end(), {"--ranks", "4"});
  if (!processes) return test::run_program(test::aliquot_program(), words, kTwoNodes);
  const Words launcher = {"mpirun", "--oversubscribe", "-n", "4", test::aliquot_program()};
  words.insert(words.begin(), launcher.begin(), launcher.end());
  return test::run_program("/usr/bin/env", words, test::mpirun_environment(kTwoNodes));
}

TEST(Quantize, ProcessesGiveTheDigestOfThreads) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const std::string plain = train({"--layers", "2", "--steps", "3"}).out;
  for (const Words& how : {Words{"--quantize", "weights"},
                           {"--quantize", "gradients", "--zero-stage", "1"},
                           {"--quantize", "both", "--precision", "bf16"},
                           {"--quantize", "both", "--replicas", "2", "--accumulate", "2"}}) {
    Words words = {"--layers", "2", "--steps", "3"};
    words.insert(words.end(), how.begin(), how.end());
    const test::CommandResult threads = train(words);
    EXPECT_EQ(threads.code, 0) << threads.err;
    EXPECT_NE(threads.out, plain);
    const test::CommandResult processes = train(words, true);
    EXPECT_EQ(processes.out, threads.out) << processes.err;
  }
}

double last_loss(const Words& more) {
  test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "run.jsonl";
  Words words = {"--steps", "100", "--layers", "2", "--sequence", "32", "--metrics", metrics};
  words.insert(words.end(), more.begin(), more.end());
  EXPECT_EQ(train(words).code, 0);
  std::vector<double> losses;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    if (json.contains("step")) losses.push_back(json["loss"]);
  }
  return std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10;
}

TEST(Quantize, LossIsCloseToThatWithoutQuantization) {
  const double plain = last_loss({});
  EXPECT_LT(plain, 3);
  EXPECT_NEAR(last_loss({"--quantize", "both"}), plain, 0.01 * plain);
  EXPECT_NEAR(last_loss({"--quantize", "gradients", "--replicas", "2"}), plain, 0.01 * plain);
}

/// Checks how many bytes cross between nodes for each parameter in a step. In fp32, 12 bytes cross: two gathers and one
/// reduce send 4 bytes each. The last of the 32 units stays gathered, so it is gathered only once. With --quantize
/// both, 2 bytes and the scales cross, because 8-bit weights cross between nodes only once per step.
TEST(Quantize, PlannedTrafficBetweenNodesMatchesTheFormula) {
  const auto crossing = [](const char* what) {
    const test::CommandResult plan = test::run_aliquot(
        {"plan", "--params", "1b", "--ranks", "16", "--ranks-per-node", "4", "--quantize", what, "--format", "json"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    return Json::parse(plan.out)["plans"][0]["crossing_bytes"].get<double>();
  };
  // Each of the four nodes sends a quarter of the parameters to three others, and three quarters of its gradients.
  constexpr double kSent = 1e9 * 0.75, kCode = 1 + 4.0 / 256;
  constexpr double kGathered = 8 - 4.0 / 32;
  EXPECT_NEAR(crossing("none"), kSent * (kGathered + 4), kSent * 1e-2);
  EXPECT_NEAR(crossing("weights"), kSent * (kCode + 4), kSent * 1e-2);
  EXPECT_NEAR(crossing("gradients"), kSent * (kGathered + kCode), kSent * 1e-2);
  EXPECT_NEAR(crossing("both"), kSent * 2 * kCode, kSent * 1e-2);
}

TEST(Quantize, RejectsIncompatibleOptions) {
  const auto refuses = [](Words words, std::string_view sentence) {
    words.insert(words.begin(), {"train", "--steps", "1"});
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find(sentence), std::string::npos) << result.err;
  };
  refuses({"--quantize", "weights", "--zero-stage", "2"}, "every rank keeps full parameters, and no gather is needed");
  refuses({"--quantize", "gradients", "--reproducible"}, "quantized sums depend on the number of nodes");
  refuses({"--quantize", "all"}, "none, weights, gradients");
}

}  // namespace
}  // namespace aliquot
