// With --reproducible, every mesh of 8 ranks computes the same bits: losses, gradient norms, parameters, and the file
// state.h5 of a checkpoint. With ALIQUOT_ALL_CASES=1 in the environment, the test runs all models, ZeRO stages and
// kinds of pipelines on each mesh, and each of these runs is resumed in every seventh setting.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>

#include "tests/apps/train/meshes.h"
#include "tests/apps/train/pipeline_runs.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using pipeline_runs::RunResults;

using test::MeshSizes;

constexpr int kRanks = test::kMeshRanks;
constexpr size_t kResumeStride = 7;  // the long suite resumes each checkpoint in every seventh setting

/// A run on a mesh.
struct Setting {
  MeshSizes mesh;
  int zero_stage;
  const char* schedule;

  std::string text() const {
    const auto& [p, r, s, t] = mesh;
    return fmt::format("--pipeline {} --replicas {} --tensor {} --zero-stage {}{}", p, r, t, zero_stage,
                       p > 1 ? fmt::format(" --pipeline-schedule {}", schedule) : "");
  }
};

/// The suite runs each mesh with one ZeRO stage and one pipeline schedule. The long suite runs all of them.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const MeshSizes& mesh : test::meshes_of_8_ranks()) {
    std::vector<Setting> of_mesh;
    for (const int zero_stage : {3, 2, 1, 0}) {
      for (const char* schedule : {"1f1b", "zero-bubble"}) {
        if (mesh.pipeline == 1 && std::string_view(schedule) != "1f1b") continue;
        of_mesh.push_back({mesh, zero_stage, schedule});
      }
    }
    if (test::runs_all_cases()) {
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

/// Resumes from the checkpoint in `saved`.
std::string resumed_digest(const std::filesystem::path& saved, const std::string& options) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path copy = directory.path() / "copy";
  std::filesystem::copy(saved, copy, std::filesystem::copy_options::recursive);
  return pipeline_runs::train(kRanks, options + " --resume auto --checkpoint-dir " + copy.string()).digest;
}

std::string name_of(const char* options) {
  std::string name;
  for (const char c : std::string_view(options)) {
    if (std::isalnum(c) != 0) name += c;
  }
  return name;
}

constexpr std::array<const char*, 6> kModels = {"--model gpt2-nano --tied on",
                                                "--model gpt2-nano --tied off",
                                                "--model llama-nano --kv-heads 8 --precision bf16",
                                                "--model llama-nano --kv-heads 8 --tied on",
                                                "--model llama-nano --kv-heads 8 --tied off",
                                                "--model gpt2-nano --precision bf16"};

class ReproducibleMesh : public testing::TestWithParam<const char*> {};

/// The suite runs each model on every third mesh, so each mesh runs two of the six models. The long suite runs each
/// model on all meshes.
TEST_P(ReproducibleMesh, AllMeshesComputeTheSameBits) {
  const Trained one = train(1, common(GetParam()));
  ASSERT_EQ(one.run.losses.size(), 3U);
  const std::vector<Setting> all = settings();
  const size_t model = std::ranges::find(kModels, std::string_view(GetParam())) - kModels.begin();
  for (size_t i = test::runs_all_cases() ? 0 : model % 3; i < all.size(); i += test::runs_all_cases() ? 1 : 3) {
    const Setting& setting = all[i];
    const Trained run = train(kRanks, common(GetParam()) + setting.text());
    expect_same(run, one, setting.text());
    EXPECT_EQ(run.run.done["planned"], run.run.done["measured"]) << setting.text();
  }
}

constexpr std::array<const char*, 2> kResumed = {"--model gpt2-nano --tied on",
                                                 "--model llama-nano --kv-heads 8 --tied off"};

class ReproducibleResume : public testing::TestWithParam<const char*> {};

/// The suite saves on each mesh with one of the two models, and resumes on the next mesh. The long suite runs both
/// models, and resumes in every seventh setting.
TEST_P(ReproducibleResume, AllMeshesResumeToTheSameBits) {
  const std::string one = pipeline_runs::train(1, common(GetParam())).digest;
  const std::vector<Setting> all = settings();
  const size_t model = std::ranges::find(kResumed, std::string_view(GetParam())) - kResumed.begin();
  for (size_t from = test::runs_all_cases() ? 0 : model; from < all.size();
       from += test::runs_all_cases() ? 1 : kResumed.size()) {
    const test::TemporaryDirectory directory;
    const std::string saved = directory.path() / "saved";
    pipeline_runs::train(kRanks, common(GetParam()) + all[from].text() + " --stop-after 1 --checkpoint-dir " + saved);
    for (size_t i = 1; i <= (test::runs_all_cases() ? all.size() : 1);
         i += test::runs_all_cases() ? kResumeStride : 1) {
      const Setting& to = all[(from + i) % all.size()];
      EXPECT_EQ(resumed_digest(saved, common(GetParam()) + to.text()), one)
          << to.text() << " from " << all[from].text();
    }
  }
}

/// The comparisons above would find a sum whose order depends on the number of ranks in a tensor group.
TEST(ReproducibleMeshes, WithoutTheOptionBitsDepend) {
  const std::string options = "--model gpt2-nano --layers 2 --width 32 --heads 8 ";
  EXPECT_NE(pipeline_runs::train(1, options).digest, pipeline_runs::train(4, options + "--tensor 4").digest);
}

TEST(ReproducibleMeshes, SequenceParallelismDoesNotChangeBits) {
  for (const char* model : {"--model gpt2-nano ", "--model llama-nano --kv-heads 8 "}) {
    const std::string options = common(model) + "--tensor 4 ";
    EXPECT_EQ(pipeline_runs::train(kRanks, options + "--sequence-parallel off").digest,
              pipeline_runs::train(kRanks, options).digest);
  }
}

/// Qwen3 has norms of queries and keys, and its head width is not width / heads. The extents are uneven.
TEST(ReproducibleMeshes, ModelsWithNormsOfHeadsComputeTheSameBits) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path config = directory.path() / "config.json";
  std::ofstream(config) << R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 36,
    "num_hidden_layers": 4, "num_attention_heads": 18, "num_key_value_heads": 9, "head_dim": 6,
    "intermediate_size": 101, "vocab_size": 251, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": true})";
  const auto digest = [&](const std::string& more) {
    const test::TemporaryDirectory metrics;
    std::vector<std::string> words = pipeline_runs::words_of(
        "train --steps 3 --context 16 --micro-batch 1 --threads 1 --quiet --reproducible --global-batch 8 --lr 0.01 "
        "--model " +
        config.string() + " " + more);
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 0) << more << "\n" << result.err;
    return result.out;
  };
  const std::string one = digest("--ranks 1");
  for (const char* more :
       {"--ranks 2 --tensor 2", "--ranks 4 --tensor 4", "--ranks 8 --tensor 8",
        "--ranks 4 --tensor 4 --sequence-parallel off", "--ranks 8 --tensor 8 --sequence-parallel off",
        "--ranks 8 --tensor 2 --replicas 2", "--ranks 4 --pipeline 2 --tensor 2 --pipeline-schedule zero-bubble"})
    EXPECT_EQ(digest(more), one) << more;
}

TEST(ReproducibleMeshes, RefusesMeshesWithoutThisPromise) {
  const auto error = [](const std::string& more) {
    const test::CommandResult result = test::run_aliquot(
        pipeline_runs::words_of("train --steps 1 --threads 1 --reproducible --micro-batch 1 --context 15 " + more));
    EXPECT_EQ(result.code, 1) << more;
    return result.err;
  };
  EXPECT_NE(error("--ranks 3 --tensor 3 --heads 3 --width 24").find("expected 1, 2, 4 or 8"), std::string::npos);
  EXPECT_NE(error("--ranks 4 --tensor 4 --model llama-nano --heads 4 --kv-heads 2").find("key and value heads"),
            std::string::npos);
  EXPECT_NE(error("--ranks 2 --tensor 2 --heads 4 --width 32").find("--sequence-parallel off"), std::string::npos);
  EXPECT_NE(error("--ranks 2 --tensor 2 --context 16 --state bf16").find("leave out --state bf16"), std::string::npos);
  EXPECT_NE(error("--ranks 2 --tensor 2 --context 16 --zero-stage 3 --quantize weights").find("leave out --quantize"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, ReproducibleMesh, testing::ValuesIn(kModels),
                         [](const auto& model) { return name_of(model.param); });

INSTANTIATE_TEST_SUITE_P(Models, ReproducibleResume, testing::ValuesIn(kResumed),
                         [](const auto& model) { return name_of(model.param); });

}  // namespace
}  // namespace aliquot
