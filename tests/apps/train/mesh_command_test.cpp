// Trains with `aliquot train` on every mesh of 8 ranks (pipeline x replicas x shards x tensor groups), and resumes from
// checkpoints of other meshes. With ALIQUOT_ALL_CASES=1 in the environment, every mesh runs every ZeRO stage, and
// resumes from every other mesh.
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/command_line.h"
#include "tests/apps/train/meshes.h"
#include "tests/checkpoint/support.h"
#include "tests/support/all_cases.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 4, kSavedStep = 2;

/// A model with uneven parts on 8 ranks. Llama has fewer heads of keys and values than ranks.
std::vector<std::string> model_words(const std::string& family) {
  std::vector<std::string> words = {"--model", family, "--layers",      "6",    "--width",        "64",
                                    "--heads", "8",    "--context",     "15",   "--hidden",       "99",
                                    "--vocab", "251",  "--lr",          "1e-3", "--data-seed",    "3",
                                    "--steps", "4",    "--micro-batch", "1",    "--global-batch", "8"};
  if (family == "llama-nano") words.insert(words.end(), {"--kv-heads", "4"});
  return words;
}

std::vector<std::string> mesh_words(const MeshSizes& mesh, int zero_stage) {
  return {"--ranks",      std::to_string(mesh.rank_count()), "--pipeline", std::to_string(mesh.pipeline),
          "--replicas",   std::to_string(mesh.replicas),     "--tensor",   std::to_string(mesh.tensor),
          "--zero-stage", std::to_string(zero_stage)};
}

/// Trains, and returns the losses of the steps of this run. Expects that planned and measured memory agree. `launched`:
/// whether ranks are processes under mpirun.
std::vector<double> train(const std::string& family, const MeshSizes& mesh, int zero_stage,
                          const std::vector<std::string>& more = {}, bool launched = false) {
  const TemporaryDirectory directory;
  const std::string metrics = directory.path() / "metrics.jsonl";
  std::vector<std::string> words = {"train", "--threads", "1", "--progress", "none", "--metrics", metrics};
  for (const auto& part : {model_words(family), mesh_words(mesh, zero_stage), more})
    words.insert(words.end(), part.begin(), part.end());
  const int ranks = mesh.rank_count();
  const CommandResult result = launched ? run_aliquot_under_mpirun(ranks, words) : run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE((result.out + result.err).find("planned and measured agree to the byte"), std::string::npos)
      << mesh.text() << "\n"
      << result.out << result.err;
  std::vector<double> losses;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("step")) losses.push_back(json["loss"].get<double>());
  }
  return losses;
}

/// `losses` are those of the last steps.
void expect_close(const std::vector<double>& losses, const std::vector<double>& expected, const std::string& what) {
  ASSERT_LE(losses.size(), expected.size()) << what;
  const size_t first = expected.size() - losses.size();
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[first + i], 1e-6 * expected[first + i]) << what << ", loss " << i;
}

class MeshCommand : public testing::TestWithParam<const char*> {
 protected:
  static int family_index() { return GetParam() == std::string_view("gpt2-nano") ? 0 : 1; }
};

constexpr MeshSizes kOneRank{1, 1, 1, 1};

INSTANTIATE_TEST_SUITE_P(Models, MeshCommand, testing::Values("gpt2-nano", "llama-nano"), [](const auto& family) {
  return std::string(family.param).substr(0, 4) == "gpt2" ? "Gpt2" : "Llama";
});

/// The suite runs one or two ZeRO stages on each mesh, and others for the other family.
TEST_P(MeshCommand, EveryMeshHasTheLossesOfOneRankAndThePlannedMemory) {
  const std::vector<double> one = train(GetParam(), kOneRank, 3);
  ASSERT_EQ(one.size(), static_cast<size_t>(kSteps));
  CaseSelection selection(3, family_index());
  for (const MeshSizes& mesh : meshes_of_8_ranks()) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      if (!selection.next()) continue;
      const std::vector<double> losses = train(GetParam(), mesh, zero_stage);
      EXPECT_EQ(losses.size(), one.size());
      expect_close(losses, one, fmt::format("{}, ZeRO stage {}", mesh.text(), zero_stage));
    }
  }
}

TEST_P(MeshCommand, ProcessesHaveTheLossesOfThreads) {
  if (!has_mpi()) GTEST_SKIP() << "without mpirun";
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 1, 2}, MeshSizes{2, 1, 1, 2}})
    EXPECT_EQ(train(GetParam(), mesh, 3, {}, true), train(GetParam(), mesh, 3)) << mesh.text();
}

/// Saves on a mesh, and resumes on the next one at another ZeRO stage. The suite saves on half of the meshes with one
/// model family, and on the other half with the other family.
TEST_P(MeshCommand, EveryMeshResumesFromOtherMeshes) {
  const std::vector<double> one = train(GetParam(), kOneRank, 3);
  const std::vector<MeshSizes> worlds = meshes_of_8_ranks();
  CaseSelection selection(2, family_index());
  for (size_t from = 0; from < worlds.size(); ++from) {
    if (!selection.next()) continue;
    const TemporaryDirectory directory;
    const std::string saved = directory.path() / "saved";
    train(GetParam(), worlds[from], static_cast<int>(from % 4),
          {"--checkpoint-dir", saved, "--stop-after", std::to_string(kSavedStep)});
    for (size_t i = 1; i <= (runs_all_cases() ? worlds.size() : 1); ++i) {
      const size_t to = (from + i) % worlds.size();
      const std::string copy = directory.path() / fmt::format("resumed-{}", to);
      std::filesystem::copy(saved, copy, std::filesystem::copy_options::recursive);
      const std::vector<double> losses =
          train(GetParam(), worlds[to], static_cast<int>((to + 1) % 4), {"--checkpoint-dir", copy, "--resume", "auto"});
      const std::string what = fmt::format("{} from {}", worlds[to].text(), worlds[from].text());
      EXPECT_EQ(losses.size(), static_cast<size_t>(kSteps - kSavedStep)) << what;
      expect_close(losses, one, what);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
