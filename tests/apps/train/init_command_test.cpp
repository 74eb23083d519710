// Trains, saves, exports and initializes models defined by a config.json. Flags that contradict it must be rejected.
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLlama = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    "vocab_size": 256, "rms_norm_eps": 1e-3, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 4.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_inner": 48,
    "n_positions": 64, "vocab_size": 256, "layer_norm_epsilon": 1e-3, "resid_pdrop": 0.1})";

std::string digest_of(const CommandResult& result) {
  const size_t at = result.out.rfind("digest ");
  return at == std::string::npos ? "no digest: " + result.err : result.out.substr(at + 7, 64);
}

class Init : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  static CommandResult train(std::vector<std::string> words) {
    words.insert(words.begin(), {"train", "--quiet", "--threads", "1", "--micro-batch", "1"});
    return run_aliquot(words);
  }
  /// Trains one step from `weights` with a learning rate of 0, so the digest of the run is the digest of `weights`.
  static CommandResult start(const std::string& weights, std::vector<std::string> words = {}) {
    words.insert(words.end(), {"--init", weights, "--steps", "1", "--lr", "0", "--weight-decay", "0"});
    return train(words);
  }
  /// Trains the model of `config` for two steps, saves it in NAME/run, exports it to NAME/hf and returns its digest.
  std::string make(const std::string& name, const std::string& config) const {
    std::filesystem::create_directory(at(name));
    write_file(at(name + "/config.json"), config);
    const CommandResult trained = train(
        {"--model", at(name + "/config.json"), "--steps", "2", "--ranks", "2", "--checkpoint-dir", at(name + "/run")});
    EXPECT_EQ(trained.code, 0) << trained.err;
    const CommandResult exported = run_aliquot({"checkpoint", "export", at(name + "/run"), "--out", at(name + "/hf")});
    EXPECT_EQ(exported.code, 0) << exported.err;
    return digest_of(trained);
  }
  static void expect_refusal(const CommandResult& result, const std::string& sentence) {
    EXPECT_EQ(result.code, 1) << result.out << result.err;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << sentence << "\n" << result.err;
  }
  TemporaryDirectory folder_;
};

TEST_F(Init, ExportAndInitKeepTheConfigurationWithoutFlags) {
  Json untied = Json::parse(kGpt2);
  untied["tie_word_embeddings"] = false;
  const std::string untied_text = untied.dump();
  for (const auto& [name, config] :
       {std::pair{"llama", kLlama}, std::pair{"gpt2", kGpt2}, std::pair{"untied", untied_text.c_str()}}) {
    const std::string under = std::string(name) + "/", digest = make(name, config);
    const std::string written = read_file(at(under + "hf/config.json"));
    // Starts five new runs: from the exported folder, its weights file, the directory of the run, its checkpoint, and
    // the imported weights.
    ASSERT_EQ(run_aliquot({"checkpoint", "import", at(under + "hf"), "--out", at(under + "in")}).code, 0);
    int count = 0;
    for (const char* weights : {"hf", "hf/model.safetensors", "run", "run/step-00000002", "in"}) {
      const std::string next = at(under + std::to_string(count++));
      const CommandResult started = start(at(under + weights), {"--checkpoint-dir", next});
      EXPECT_EQ(digest_of(started), digest) << weights;
      ASSERT_EQ(run_aliquot({"checkpoint", "export", next, "--out", next + "/hf"}).code, 0) << weights;
      EXPECT_EQ(read_file(next + "/hf/config.json"), written) << weights;
    }
  }
  const Json llama = Json::parse(read_file(at("llama/hf/config.json"))),
             gpt2 = Json::parse(read_file(at("gpt2/hf/config.json")));
  EXPECT_EQ(llama["rope_theta"], 10000.0);
  EXPECT_EQ(llama["rms_norm_eps"], 1e-3);
  EXPECT_EQ(llama["rope_scaling"]["factor"], 4.0);
  EXPECT_EQ(llama["rope_scaling"]["original_max_position_embeddings"], 16);
  EXPECT_EQ(llama["tie_word_embeddings"], false);
  EXPECT_EQ(gpt2["layer_norm_epsilon"], 1e-3);
  EXPECT_EQ(gpt2["n_inner"], 48);
  EXPECT_EQ(gpt2["tie_word_embeddings"], true);
  EXPECT_EQ(Json::parse(read_file(at("untied/hf/config.json")))["tie_word_embeddings"], false);
}

/// With equal weights, a changed field of config.json must change the loss, unless the field does not affect the model.
TEST_F(Init, FieldsOfTheConfigurationAffectTheLoss) {
  make("llama", kLlama);
  make("gpt2", kGpt2);
  const auto loss = [&](const std::string& model, const char* key, const Json& value) {
    const std::string path = at(model + "/hf/config.json"), before = read_file(path);
    Json config = Json::parse(before);
    config[key] = value;
    write_file(path, config.dump());
    const CommandResult result = start(at(model + "/hf"), {"--metrics", at("run.jsonl")});
    write_file(path, before);
    EXPECT_EQ(result.code, 0) << result.err;
    std::ifstream lines(at("run.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      if (const Json step = Json::parse(line); step.contains("loss")) return step["loss"].get<double>();
    }
    return 0.0;
  };
  const double llama = loss("llama", "rope_theta", 10000.0), gpt2 = loss("gpt2", "layer_norm_epsilon", 1e-3);
  EXPECT_NE(loss("llama", "rope_theta", 500000.0), llama);
  EXPECT_NE(loss("llama", "rms_norm_eps", 1e-5), llama);
  EXPECT_NE(loss("llama", "rope_scaling", nullptr), llama);
  EXPECT_NE(loss("gpt2", "layer_norm_epsilon", 1e-5), gpt2);
  EXPECT_NE(loss("gpt2", "n_head", 2), gpt2);
  EXPECT_EQ(loss("gpt2", "eos_token_id", 7), gpt2);
}

TEST_F(Init, FlagsThatContradictTheWeightsAreRejected) {
  make("llama", kLlama);
  make("gpt2", kGpt2);
  const std::string of_llama = at("llama/hf/config.json"), of_gpt2 = at("gpt2/hf/config.json");
  expect_refusal(start(at("gpt2/hf"), {"--heads", "8"}),
                 "--heads 8 contradicts " + of_gpt2 + " (n_head 4): leave --heads out, or give --heads 4.");
  expect_refusal(start(at("llama/hf"), {"--heads", "8"}), "contradicts " + of_llama + " (num_attention_heads 4)");
  expect_refusal(start(at("llama/hf"), {"--kv-heads", "4"}), "contradicts " + of_llama + " (num_key_value_heads 2)");
  expect_refusal(start(at("llama/hf"), {"--layers", "1"}), "contradicts " + of_llama + " (num_hidden_layers 2)");
  expect_refusal(start(at("llama/hf"), {"--width", "64"}), "contradicts " + of_llama + " (hidden_size 32)");
  expect_refusal(start(at("llama/hf"), {"--hidden", "96"}), "contradicts " + of_llama + " (intermediate_size 48)");
  expect_refusal(start(at("llama/hf"), {"--context", "128"}),
                 "contradicts " + of_llama + " (max_position_embeddings 64)");
  expect_refusal(start(at("llama/hf"), {"--vocab", "300"}), "contradicts " + of_llama + " (vocab_size 256)");
  expect_refusal(start(at("llama/run"), {"--heads", "8"}),
                 "contradicts " + at("llama/run/step-00000002") + " (heads 4): leave --heads out, or give --heads 4.");
  expect_refusal(
      start(at("llama/hf"), {"--model", "llama-nano"}),
      "--model llama-nano (--layers 4) contradicts " + of_llama + " (num_hidden_layers 2): leave --model out.");
  // This field does not change the shape of any tensor.
  write_file(
      at("other.json"),
      Json::parse(kLlama).patch(Json::parse(R"([{"op": "replace", "path": "/rms_norm_eps", "value": 1e-5}])")).dump());
  expect_refusal(start(at("llama/hf"), {"--model", at("other.json")}), "norm epsilon differs; leave --model out.");
  // Flags that agree with the weights are accepted.
  EXPECT_EQ(start(at("llama/hf"), {"--model", at("llama/config.json"), "--heads", "4", "--sequence", "16"}).code, 0);
  // Export rejects a number of heads that differs from the number in the checkpoint.
  expect_refusal(run_aliquot({"checkpoint", "export", at("gpt2/run"), "--out", at("again"), "--heads", "8"}),
                 "--heads 8 contradicts the checkpoint (heads 4): leave --heads out.");
}

TEST_F(Init, UnsupportedFieldsAreRejectedByName) {
  make("llama", kLlama);
  const std::string path = at("llama/hf/config.json");
  Json config = Json::parse(read_file(path));
  config["rope_scaling"] = {{"type", "longrope"}, {"factor", 2.0}};
  write_file(path, config.dump());
  const std::string sentence =
      path + R"(: rope_scaling is {"type":"longrope","factor":2.0}: not supported (only null, "default", "linear", )"
             R"("dynamic", "llama3", "yarn").)";
  expect_refusal(start(at("llama/hf")), sentence);
  expect_refusal(train({"--model", path, "--steps", "1"}), sentence);
  expect_refusal(run_aliquot({"plan", "--model", path}), sentence);
  expect_refusal(run_aliquot({"checkpoint", "import", at("llama/hf"), "--out", at("in")}), sentence);
  config["rope_scaling"] = nullptr;
  config["hidden_size"] = 64;
  config["head_dim"] = 16;
  write_file(path, config.dump());
  expect_refusal(run_aliquot({"checkpoint", "import", at("llama/hf"), "--out", at("in")}),
                 "does not describe the weights next to it, which have 2 layers of width 32: use the config.json of "
                 "these weights.");
  expect_refusal(start(at("llama/hf")), "do not fit this model");
  config["hidden_size"] = 32;
  config["head_dim"] = 8;
  config["tie_word_embeddings"] = true;  // The weights have a separate head.
  write_file(path, config.dump());
  expect_refusal(run_aliquot({"checkpoint", "import", at("llama/hf"), "--out", at("in")}),
                 "which have 2 layers of width 32 and an lm_head.weight that is not the embedding: use");
  expect_refusal(start(at("llama/hf")), "lm_head.weight is only in the file");
  EXPECT_FALSE(std::filesystem::exists(at("in")));
}

/// Copies the values of one tensor of a safetensors file to another one of the same size.
void copy_tensor(const std::string& file, const std::string& from, const std::string& to) {
  std::string bytes = read_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const Json tensors = Json::parse(bytes.substr(sizeof header, header));
  const auto begin = [&](const std::string& name) {
    return sizeof header + header + tensors[name]["data_offsets"][0].get<size_t>();
  };
  const size_t count = tensors[from]["data_offsets"][1].get<size_t>() + sizeof header + header - begin(from);
  bytes.replace(begin(to), count, bytes.substr(begin(from), count));
  write_file(file, bytes);
}

/// A file may repeat the embedding as the head of a tied model. An untied model needs the head even if both are equal.
TEST_F(Init, AHeadEqualToTheEmbeddingBelongsToUntiedModels) {
  make("llama", kLlama);
  copy_tensor(at("llama/hf/model.safetensors"), "model.embed_tokens.weight", "lm_head.weight");
  const CommandResult untied = start(at("llama/hf"), {"--ranks", "2"});
  EXPECT_EQ(untied.code, 0) << untied.err;
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("llama/hf"), "--out", at("in")}).code, 0);
  EXPECT_EQ(digest_of(start(at("in"))), digest_of(untied));
  ASSERT_EQ(run_aliquot({"checkpoint", "export", at("in"), "--out", at("again")}).code, 0);
  EXPECT_EQ(Json::parse(read_file(at("again/config.json")))["tie_word_embeddings"], false);
  EXPECT_EQ(read_file(at("again/model.safetensors")), read_file(at("llama/hf/model.safetensors")));

  const std::string path = at("llama/hf/config.json");
  Json config = Json::parse(read_file(path));
  config["tie_word_embeddings"] = true;
  write_file(path, config.dump());
  const CommandResult tied = start(at("llama/hf"));
  EXPECT_EQ(tied.code, 0) << tied.err;
  EXPECT_NE(digest_of(tied), digest_of(untied));
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("llama/hf"), "--out", at("tied")}).code, 0);
  EXPECT_EQ(digest_of(start(at("tied"))), digest_of(tied));
}

TEST_F(Init, WithoutAConfigurationTheOptionsDefineTheModel) {
  const std::string digest = make("gpt2", kGpt2);
  std::filesystem::remove(at("gpt2/hf/config.json"));
  const std::vector<std::string> flags{"--layers", "2",        "--width", "32",        "--heads",
                                       "4",        "--hidden", "48",      "--context", "64"};
  const CommandResult from_weights = start(at("gpt2/hf"), flags);
  EXPECT_EQ(digest_of(from_weights), digest);
  EXPECT_NE(
      from_weights.err.find(
          "--init " + at("gpt2/hf") +
          ": found no config.json next to the weights, so the options define the model: 4 heads, norm epsilon 1e-05."),
      std::string::npos)
      << from_weights.err;
  ASSERT_EQ(run_aliquot({"checkpoint", "import", at("gpt2/hf"), "--out", at("in")}).code, 0);
  const CommandResult from_checkpoint = start(at("in"), flags);
  EXPECT_EQ(digest_of(from_checkpoint), digest);
  EXPECT_NE(
      from_checkpoint.err.find("the checkpoint does not record the number of heads, so the options define the model"),
      std::string::npos)
      << from_checkpoint.err;
  const CommandResult exported = run_aliquot({"checkpoint", "export", at("in"), "--out", at("out"), "--heads", "4"});
  EXPECT_EQ(exported.code, 0);
  EXPECT_NE(exported.err.find("does not record the norm epsilon: assuming 4 heads, norm epsilon 1e-05, and writing "
                              "these values to config.json."),
            std::string::npos)
      << exported.err;
}

TEST_F(Init, UnreadableWeightsAreTheOnlyError) {
  write_file(at("bad.safetensors"), "these are not weights");
  for (const auto& [name, reason] :
       {std::pair{"none.safetensors", ": No such file or directory"},
        std::pair{"bad.safetensors", " is not a safetensors file: its first 8 bytes declare a header of "}}) {
    const CommandResult result = start(at(name));
    expect_refusal(result, reason);
    EXPECT_TRUE(result.err.starts_with("aliquot: --init: ")) << result.err;
    EXPECT_EQ(result.err.find("found no config.json"), std::string::npos) << result.err;
  }
}

TEST_F(Init, ResumeRejectsAnotherModel) {
  make("llama", kLlama);
  const auto resume = [&](const std::string& model) {
    return train(
        {"--model", model, "--steps", "3", "--resume", "auto", "--checkpoint-dir", at("llama/run"), "--dry-run"});
  };
  const auto resume_for_real = [&](const std::string& model) {
    return train(
        {"--model", model, "--steps", "3", "--ranks", "2", "--resume", "auto", "--checkpoint-dir", at("llama/run")});
  };
  EXPECT_EQ(resume(at("llama")).code, 0);  // --model accepts a folder with a config.json
  Json other = Json::parse(kLlama);
  other["rms_norm_eps"] = 1e-5;
  other["rope_parameters"]["rope_theta"] = 500000.0;
  write_file(at("other.json"), other.dump());
  expect_refusal(
      resume_for_real(at("other.json")),
      "was saved with a different model: norm_epsilon (checkpoint 0.001, this run 1e-05), rope_theta (checkpoint "
      "10000, this run 500000): use --model with the config.json that checkpoint export writes.");
  other = Json::parse(kLlama);
  other["max_position_embeddings"] = 128;
  write_file(at("other.json"), other.dump());
  expect_refusal(resume_for_real(at("other.json")), "context (checkpoint 64, this run 128): use --context 64.");
  EXPECT_EQ(resume_for_real(at("llama/hf/config.json")).code, 0);
}

TEST_F(Init, IgnoredFieldsAreReported) {
  write_file(at("config.json"), kGpt2);
  const CommandResult result = train({"--model", folder_.path(), "--steps", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find(at("config.json") + ": resid_pdrop 0.1: dropout is not supported"), std::string::npos)
      << result.err;
}

/// A run prints and records the fields of its model that are not options.
TEST_F(Init, RunsRecordTheirModel) {
  make("llama", kLlama);
  const CommandResult shown = train({"--init", at("llama/hf"), "--dry-run"});
  EXPECT_NE(shown.out.find("\nmodel llama: 4 heads, norm epsilon 0.001, RoPE theta 10000 with llama3 scaling by 4\n"),
            std::string::npos)
      << shown.out.substr(0, 2000);
  ASSERT_EQ(start(at("llama/hf"), {"--metrics", at("run.jsonl")}).code, 0);
  std::ifstream lines(at("run.jsonl"));
  std::string first;
  std::getline(lines, first);
  EXPECT_EQ(Json::parse(first)["run"]["model"], Json::parse(read_file(at("llama/hf/config.json"))));
}

TEST_F(Init, PlanAndSweepAcceptConfigurations) {
  write_file(
      at("config.json"),
      R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128, "vocab_size": 256})");
  const CommandResult preset = run_aliquot({"plan", "--model", "gpt2-nano"});
  EXPECT_EQ(run_aliquot({"plan", "--model", at("config.json")}).out, preset.out);
  expect_refusal(run_aliquot({"plan", "--model", at("config.json"), "--params", "7b"}),
                 "--params cannot be combined with --model");
  expect_refusal(run_aliquot({"plan", "--model", at("none.json")}), at("none.json") + ": No such file or directory.");
  expect_refusal(run_aliquot({"plan", "--model", "gpt2-nan"}), "Did you mean gpt2-nano?");
  const CommandResult swept =
      run_aliquot({"sweep", "--models", "gpt2-nano," + at("config.json"), "--stages", "0", "--ranks", "1", "--steps",
                   "1", "--threads", "1", "--layers", "1", "--out", at("results")});
  EXPECT_EQ(swept.code, 0) << swept.err;
  EXPECT_NE(swept.out.find("2 of 2 runs were measured"), std::string::npos) << swept.out;
}

/// The last token of the file is out of range, although this run does not train on it.
TEST_F(Init, ATokenOutOfRangeIsRejectedBeforeTheFirstStep) {
  std::string tokens(100'000, 'a');
  write_file(at("good.txt"), tokens);
  tokens.back() = '\xff';
  write_file(at("bad.txt"), tokens);
  const std::string sentence =
      "Token 99999 of " + at("bad.txt") + " (100000 bytes) is 255, but the model's vocabulary has 200 entries";
  const std::vector<std::string> nano{"--layers", "1",       "--width", "16",      "--heads",
                                      "2",        "--vocab", "200",     "--steps", "1"};
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), nano.begin(), nano.end());
    return train(words);
  };
  for (const char* ranks : {"1", "3"}) {
    expect_refusal(run({"--ranks", ranks, "--data", at("bad.txt"), "--metrics", at("run.jsonl")}), sentence);
    EXPECT_FALSE(std::filesystem::exists(at("run.jsonl")));
    expect_refusal(run({"--ranks", ranks, "--data", at("good.txt"), "--eval-data", at("bad.txt"), "--eval-every", "1"}),
                   sentence);
    EXPECT_EQ(run({"--ranks", ranks, "--data", at("good.txt")}).code, 0);
  }
  if (!has_mpi()) GTEST_SKIP() << "the part with processes needs mpirun and a build with MPI";
  std::vector<std::string> words{"mpirun",  "-n",        "2", "--oversubscribe", aliquot_program(), "train",
                                 "--quiet", "--threads", "1", "--data",          at("bad.txt")};
  words.insert(words.end(), nano.begin(), nano.end());
  expect_refusal(run_program("/usr/bin/env", words, mpirun_environment()), sentence);
}

}  // namespace
}  // namespace aliquot::test
