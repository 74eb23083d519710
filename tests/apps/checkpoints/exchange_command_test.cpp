// Runs aliquot checkpoint export and import, and trains from their files.
#include <cstring>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::CommandResult;
using test::run_aliquot;

/// Returns the digest that the command printed.
std::string digest_of(const CommandResult& result) {
  const size_t at = result.out.rfind("digest ");
  return at == std::string::npos ? "no digest: " + result.err : result.out.substr(at + 7, 64);
}

class Exchange : public ::testing::Test {
 protected:
  std::string at(const char* name) const { return (directory_.path() / name).string(); }

  /// Trains a model for two steps, saves it in `to` and returns its digest.
  std::string train(const std::string& to) const {
    const CommandResult result = run_aliquot({"train", "--quiet", "--ranks", "2", "--threads", "1", "--steps", "2",
                                              "--layers", "2", "--heads", "8", "--checkpoint-dir", at(to.c_str())});
    EXPECT_EQ(result.code, 0) << result.err;
    return digest_of(result);
  }
  /// Trains one step from `weights` with a learning rate of 0, so the digest of the run is the digest of `weights`.
  static CommandResult start_from(const std::string& weights, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"train",    "--quiet", "--ranks", "3", "--threads",      "1",
                                   "--steps",  "1",       "--lr",    "0", "--weight-decay", "0",
                                   "--layers", "2",       "--heads", "8", "--init",         weights};
    words.insert(words.end(), more.begin(), more.end());
    return run_aliquot(words);
  }
  test::TemporaryDirectory directory_;
};

TEST_F(Exchange, ExportAndImportKeepTheDigestAndInitLoadsTheWeights) {
  const std::string digest = train("run");
  const CommandResult out = run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")});
  ASSERT_EQ(out.code, 0) << out.err;
  const CommandResult in = run_aliquot({"checkpoint", "import", at("hf/model.safetensors"), "--out", at("back")});
  ASSERT_EQ(in.code, 0) << in.err;
  const CommandResult shown = run_aliquot({"checkpoint", "show", at("back")});
  EXPECT_EQ(digest_of(shown), digest);
  for (const char* weights : {"hf", "hf/model.safetensors", "back", "back/step-00000000", "run"}) {
    EXPECT_EQ(digest_of(start_from(at(weights))), digest) << weights;
  }
}

/// Similar layers have one line, so that the output of a large model is short.
TEST_F(Exchange, ShowGroupsTheTensorsOfSimilarLayers) {
  train("run");
  const std::string grouped = run_aliquot({"checkpoint", "show", at("run")}).out;
  for (const char* line :
       {"\n  parameters/wte.weight  float32 256x128\n", "\n  parameters/h.{0-1}.ln_1.bias  float32 128  (2 tensors)\n",
        "\n  optimizer/h.{0-1}.ln_1.bias/{exp_avg,exp_avg_sq}  float32 128  (4 tensors)\n"})
    EXPECT_NE(grouped.find(line), std::string::npos) << line << grouped;
  const std::string all = run_aliquot({"checkpoint", "show", at("run"), "--all-tensors"}).out;
  EXPECT_NE(all.find("\n  parameters/h.1.ln_1.bias  float32 128\n"), std::string::npos) << all;
  EXPECT_EQ(all.find("tensors)"), std::string::npos) << all;
  EXPECT_EQ(all.substr(all.rfind("digest")), grouped.substr(grouped.rfind("digest")));
}

TEST_F(Exchange, ImportWarnsOfWeightsThatTrainCannotLoad) {
  const std::string header =
      R"({"bert.embeddings.word_embeddings.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  test::write_file(at("bert.safetensors"), file + header + std::string(16, 'a'));
  const CommandResult bert = run_aliquot({"checkpoint", "import", at("bert.safetensors"), "--out", at("bert")});
  EXPECT_EQ(bert.code, 0) << bert.err;
  EXPECT_NE(bert.err.find("the parameters are not those of GPT-2, Llama, Mistral, Qwen2 or Qwen3"), std::string::npos)
      << bert.err;
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  const CommandResult own = run_aliquot({"checkpoint", "import", at("hf"), "--out", at("back")});
  EXPECT_EQ(own.code, 0);
  EXPECT_EQ(own.err, "");
}

TEST_F(Exchange, ExportWritesTheConfigurationOfTransformers) {
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf"), "--dtype", "bf16"}).code, 0);
  const auto config = nlohmann::json::parse(test::read_file(at("hf/config.json")));
  const nlohmann::json expected{{"model_type", "gpt2"},
                                {"n_layer", 2},
                                {"n_embd", 128},
                                {"n_head", 8},
                                {"n_positions", 128},
                                {"vocab_size", 256},
                                {"torch_dtype", "bfloat16"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(config.at(key), value) << key;
  const std::string file = test::read_file(at("hf/model.safetensors"));
  EXPECT_NE(file.find(R"("wte.weight":{"dtype":"BF16","shape":[256,128])"), std::string::npos);
  EXPECT_NE(file.find(R"("h.1.attn.c_attn.weight":{"dtype":"BF16","shape":[128,384])"), std::string::npos);
  EXPECT_NE(file.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
}

/// In published safetensors files of Llama, tensor names begin with "model.". In files of a module without a
/// language-model head, they do not. Both must load.
TEST_F(Exchange, LlamaExportAndImportKeepTheDigest) {
  const std::vector<std::string> shape{"--model", "llama-nano", "--layers", "2", "--threads", "1", "--quiet"};
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "train");
    words.insert(words.end(), shape.begin(), shape.end());
    return run_aliquot(words);
  };
  const std::string digest = digest_of(run({"--steps", "2", "--ranks", "2", "--checkpoint-dir", at("run")}));
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  const auto config = nlohmann::json::parse(test::read_file(at("hf/config.json")));
  const nlohmann::json expected{
      {"model_type", "llama"},    {"num_hidden_layers", 2},         {"hidden_size", 128},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2},       {"head_dim", 32},
      {"intermediate_size", 384}, {"max_position_embeddings", 128}, {"tie_word_embeddings", true},
      {"rope_scaling", nullptr},  {"rope_theta", 500000.0},         {"vocab_size", 256}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(config.at(key), value) << key;
  std::string file = test::read_file(at("hf/model.safetensors"));
  EXPECT_NE(file.find(R"("model.layers.1.self_attn.k_proj.weight":{"dtype":"F32","shape":[64,128])"),
            std::string::npos);
  const CommandResult in = run_aliquot({"checkpoint", "import", at("hf/model.safetensors"), "--out", at("back")});
  ASSERT_EQ(in.code, 0) << in.err;
  EXPECT_EQ(digest_of(run_aliquot({"checkpoint", "show", at("back")})), digest);
  for (size_t name = file.find("\"model."); name != std::string::npos; name = file.find("\"model.", name)) {
    file.replace(name, 7, "\"");
    file.insert(file.find('{', name), 6, ' ');  // the spaces keep the header's length unchanged
  }
  test::write_file(at("bare.safetensors"), file);
  for (const char* weights : {"hf", "bare.safetensors", "back", "run"}) {
    const CommandResult started =
        run({"--steps", "1", "--lr", "0", "--weight-decay", "0", "--ranks", "3", "--init", at(weights)});
    EXPECT_EQ(digest_of(started), digest) << weights;
  }
}

TEST_F(Exchange, ExistingFilesAreKeptAndFailuresLeaveNoFiles) {
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  EXPECT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 1);
  EXPECT_EQ(run_aliquot({"checkpoint", "export", at("run")}).code, 1);
  EXPECT_EQ(run_aliquot({"checkpoint", "export", at("none"), "--out", at("hf2")}).code, 5);
  EXPECT_FALSE(std::filesystem::exists(at("hf2")));
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(at("hf"))) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("hf"), "--out", at("there")}).code, 0);
  const CommandResult twice = run_aliquot({"checkpoint", "import", at("hf"), "--out", at("there")});
  EXPECT_EQ(twice.code, 1);
  EXPECT_NE(twice.err.find("step-00000000 already exists: remove it, or choose another directory."), std::string::npos)
      << twice.err;
  test::write_file(at("bad.safetensors"), "12345678{}");
  EXPECT_EQ(run_aliquot({"checkpoint", "import", at("bad.safetensors"), "--out", at("in")}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(at("in")));
}

/// Imported weights without a config.json do not determine the number of heads.
TEST_F(Exchange, ExportNeedsHeadsIfTheCheckpointDoesNotRecordThem) {
  const auto refused = [&](const char* from, const std::vector<std::string>& more, std::string_view sentence) {
    std::vector<std::string> words{"checkpoint", "export", at(from), "--out", at("again")};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run_aliquot(words);
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(at("again")));
  };
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  std::filesystem::remove(at("hf/config.json"));
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("hf"), "--out", at("back")}).code, 0);
  refused("back", {}, "does not record the number of heads (2 layers of width 128): give --heads N.");
  refused("back", {"--heads", "3"}, "--heads 3 does not divide the width 128: use another number of heads.");
  ASSERT_EQ(run_aliquot({"train", "--quiet", "--model", "llama-nano", "--layers", "2", "--threads", "1", "--steps", "1",
                         "--checkpoint-dir", at("llama")})
                .code,
            0);
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("llama"), "--out", at("llama-hf")}).code, 0);
  std::filesystem::remove(at("llama-hf/config.json"));
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("llama-hf"), "--out", at("llama-back")}).code, 0);
  refused("llama-back", {"--heads", "1"},
          "--heads 1 gives heads of 128 elements, and the total width of the keys, 64, is not a multiple of that");
  // A run cannot resume from imported weights either, because they contain no run state.
  const CommandResult resumed =
      run_aliquot({"train", "--quiet", "--layers", "2", "--heads", "8", "--allow-missing", "--resume", at("back")});
  EXPECT_EQ(resumed.code, 1);
  EXPECT_NE(resumed.err.find("so aliquot train did not write it: start from its weights with --init."),
            std::string::npos)
      << resumed.err;
}

TEST_F(Exchange, InitRejectsWeightsOfOtherShapes) {
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  std::filesystem::remove(at("hf/config.json"));  // The flags below would contradict it.
  const CommandResult wider = start_from(at("hf"), {"--vocab", "300"});
  EXPECT_EQ(wider.code, 1);
  EXPECT_NE(wider.err.find("is float32 256x128 in the file and float32 300x128 in the model"), std::string::npos)
      << wider.err;
  const CommandResult deeper = start_from(at("hf"), {"--layers", "3"});
  EXPECT_EQ(deeper.code, 1);
  EXPECT_NE(deeper.err.find("h.2.ln_1.weight is missing from the file"), std::string::npos) << deeper.err;
  EXPECT_NE(deeper.err.find("; and 8 more"), std::string::npos) << deeper.err;
  EXPECT_EQ(start_from(at("run"), {"--layers", "1"}).code, 1);
  EXPECT_EQ(start_from(at("nothing")).code, 1);
  EXPECT_EQ(start_from(at("nothing.safetensors")).code, 1);
  EXPECT_EQ(start_from(at("hf"), {"--resume", at("run")}).code, 1);
}

TEST_F(Exchange, AllowMissingSetsMissingWeightsToZero) {
  train("run");
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("run"), "--out", at("hf")}).code, 0);
  for (const char* weights : {"hf", "run"}) {
    const CommandResult result =
        start_from(at(weights), {"--layers", "3", "--allow-missing", "--checkpoint-dir", at("deep") + weights});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find("h.2.attn.c_proj.weight"), std::string::npos) << result.err;
  }
  // Both runs started from the same weights, so their checkpoints are equal.
  EXPECT_EQ(run_aliquot({"checkpoint", "diff", at("deephf"), at("deeprun")}).code, 0);
}

TEST_F(Exchange, MemoryDoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the peak memory includes the memory of the sanitizer";
#endif
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  // The sparse file has 128 MiB of bf16 values. The import converts them to 256 MiB of fp32 values.
  std::string header = R"({"w":{"dtype":"BF16","shape":[67108864],"data_offsets":[0,134217728]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  test::write_file(at("w.safetensors"),
                   std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header);
  std::filesystem::resize_file(at("w.safetensors"), 8 + header.size() + 134217728);
  const CommandResult in = run_aliquot({"checkpoint", "import", at("w.safetensors"), "--out", at("in")});
  EXPECT_EQ(in.code, 0) << in.err;
  EXPECT_LT(in.peak_bytes, kMaxBytes);
  const CommandResult out = run_aliquot({"checkpoint", "export", at("in"), "--out", at("out"), "--dtype", "bf16"});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_LT(out.peak_bytes, kMaxBytes);
  EXPECT_EQ(std::filesystem::file_size(at("out/model.safetensors")) % 8, 0u);
  EXPECT_FALSE(std::filesystem::exists(at("out/config.json")));
  std::printf("peak memory: import %lld MiB, export %lld MiB, for a tensor of 256 MiB\n",
              static_cast<long long>(in.peak_bytes >> 20), static_cast<long long>(out.peak_bytes >> 20));
}

}  // namespace
}  // namespace aliquot
