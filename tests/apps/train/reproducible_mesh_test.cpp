// With --reproducible, every mesh of 8 ranks computes the same bits: losses, gradient norms, parameters, and the file
// state.h5 of a checkpoint. With ALIQUOT_ALL_MESHES=1 in the environment, the test runs all ZeRO stages and kinds of
// pipelines on each mesh, and every mesh resumes from every other mesh.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>

#include "tests/apps/train/pipeline_runs.h"

namespace aliquot {
namespace {

using pipeline_runs::RunResults;

constexpr int kRanks = 8;

struct Mesh {
  int pipeline, replicas, shards, tensor;
};

std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (int p = 1; p <= kRanks; p *= 2) {
    for (int r = 1; p * r <= kRanks; r *= 2) {
      for (int s = 1; p * r * s <= kRanks; s *= 2) all.push_back({p, r, s, kRanks / (p * r * s)});
    }
  }
  return all;
}

bool runs_all() { return std::getenv("ALIQUOT_ALL_MESHES") != nullptr; }

/// A run on a mesh.
struct Setting {
  Mesh mesh;
  int zero_stage;
  const char* schedule;

  std::string text() const {
    const auto& [p, r, s, t] = mesh;
    return fmt::format("--pipeline {} --replicas {} --tensor {} --zero-stage {}{}", p, r, t, zero_stage,
                       p > 1 ? fmt::format(" --pipeline-schedule {}", schedule) : "");
  }
};

/// Without runs_all(), each mesh has one ZeRO stage, and one kind of pipeline.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Mesh& mesh : meshes()) {
    std::vector<Setting> of_mesh;
    for (const int zero_stage : {3, 2, 1, 0}) {
      for (const char* schedule : {"1f1b", "zero-bubble"}) {
        if (mesh.pipeline == 1 && std::string_view(schedule) != "1f1b") continue;
        of_mesh.push_back({mesh, zero_stage, schedule});
      }
    }
    if (runs_all()) {
      all.insert(all.end(), of_mesh.begin(), of_mesh.end());
    } else {
      all.push_back(of_mesh[all.size() * 3 % of_mesh.size()]);
    }
  }
  return all;
}

std::string state_in(const std::filesystem::path& checkpoints) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoints)) {
    if (entry.path().filename() != "state.h5") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ADD_FAILURE() << "no state.h5 in " << checkpoints;
  return {};
}

struct Trained {
  RunResults run;
  std::string state;
};

void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  EXPECT_EQ(a.run.digest, b.run.digest) << what;
  EXPECT_EQ(a.run.losses, b.run.losses) << what;
  EXPECT_EQ(a.run.norms, b.run.norms) << what;
  EXPECT_TRUE(a.state == b.state) << what << ": state.h5 differs";
}

/// The last of two options with the same name counts.
std::string common(const std::string& model) {
  return model + " --layers 8 --width 32 --heads 16 --reproducible --clip 0.5 --lr 0.01 --eval-every 0 ";
}

Trained train(int ranks, const std::string& options) {
  const test::TemporaryDirectory directory;
  const std::string checkpoints = directory.path() / "saved";
  Trained trained;
  trained.run = pipeline_runs::train(ranks, options + " --checkpoint-dir " + checkpoints);
  trained.state = state_in(checkpoints);
  return trained;
}

class ReproducibleMesh : public testing::TestWithParam<std::string> {};

TEST_P(ReproducibleMesh, AllMeshesComputeTheSameBits) {
  const Trained one = train(1, common(GetParam()));
  ASSERT_EQ(one.run.losses.size(), 3U);
  for (const Setting& setting : settings()) {
    const Trained run = train(kRanks, common(GetParam()) + setting.text());
    expect_same(run, one, setting.text());
    EXPECT_EQ(run.run.done["planned"], run.run.done["measured"]) << setting.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReproducibleMesh,
                         testing::Values("--model gpt2-nano --tied on", "--model gpt2-nano --tied off",
                                         "--model llama-nano --kv-heads 8 --tied on",
                                         "--model llama-nano --kv-heads 8 --tied off",
                                         "--model gpt2-nano --precision bf16",
                                         "--model llama-nano --kv-heads 8 --precision bf16"),
                         [](const auto& model) {
                           std::string name;
                           for (const char c : model.param) name += std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace aliquot
