// Compares losses and gradient norms of 20 training steps with those of the Hugging Face library transformers for the
// same weights and tokens. compare_transformers.py --golden recorded the library's results.
#include "tests/apps/models/golden_transformers.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kBatch = 4, kSequence = 32;

/// Returns the same tokens as tokens() in compare_transformers.py. The generator is the example of rand() in the C
/// standard. All tokens are below 32.
std::string golden_tokens() {
  uint64_t state = 12345;
  std::string bytes;
  for (int64_t i = 0; i < kSteps * kBatch * kSequence + 1; ++i) {
    state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
    bytes += static_cast<char>((state >> 16) % 32);
    bytes += '\0';  // the upper byte of a 16-bit little-endian token
  }
  return bytes;
}

/// Trains with --model `model` and compares losses and gradient norms with `golden`.
void expect_golden(const std::string& model, std::span<const GoldenStep> golden) {
  TemporaryDirectory directory;
  const std::string data = directory.path() / "tokens.bin", metrics = directory.path() / "run.jsonl";
  write_file(data, golden_tokens());
  const CommandResult result = run_aliquot({"train",
                                            "--model",
                                            model,
                                            "--ranks",
                                            "2",
                                            "--threads",
                                            "1",
                                            "--steps",
                                            "20",
                                            "--data",
                                            data,
                                            "--shuffle",
                                            "off",
                                            "--sequence",
                                            "32",
                                            "--schedule",
                                            "constant",
                                            "--lr",
                                            "1e-3",
                                            "--weight-decay",
                                            "0.1",
                                            "--clip",
                                            "1",
                                            "--quiet",
                                            "--metrics",
                                            metrics,
                                            "--micro-batch",
                                            "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  std::ifstream file(metrics);
  size_t step = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("step")) continue;
    ASSERT_LT(step, golden.size());
    EXPECT_NEAR(json["loss"].get<double>(), golden[step].loss, 2e-6 * golden[step].loss) << model << " " << step;
    EXPECT_NEAR(json["grad_norm"].get<double>(), golden[step].gradient_norm, 5e-6 * golden[step].gradient_norm)
        << model << " " << step;
    ++step;
  }
  EXPECT_EQ(step, golden.size());
}

/// Trains the model of a config.json with the fields of `shape`. Fields of `numbers` are added or replace fields of
/// `shape`, as in compare_transformers.py. Compares the results with `golden`.
void expect_golden(const char* shape, const char* numbers, std::span<const GoldenStep> golden) {
  const TemporaryDirectory directory;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(shape);
  config.update(nlohmann::ordered_json::parse(numbers));
  write_file(directory.path() / "config.json", config.dump());
  expect_golden(directory.path() / "config.json", golden);
}

constexpr const char* kGpt2Shape =
    R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128,
    "vocab_size": 256})";
constexpr const char* kLlamaShape = R"({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384, "max_position_embeddings": 128,
    "vocab_size": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

TEST(Golden, EpsilonActsAsInTransformers) {
  expect_golden(kGpt2Shape, R"({"layer_norm_epsilon": 1e-3})", kGpt2NanoEpsilon);
}

TEST(Golden, ThetaActsAsInTransformers) {
  expect_golden(kLlamaShape, R"({"rope_theta": 100.0, "rms_norm_eps": 1e-3})", kLlamaNanoTheta);
}

TEST(Golden, RopeScalingActsAsInTransformers) {
  expect_golden(kLlamaShape, R"({"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})",
                kLlamaNanoScaled);
}

TEST(Golden, Gpt2TrainsAsTransformersDoes) { expect_golden("gpt2-nano", kGpt2Nano); }

TEST(Golden, LlamaTrainsAsTransformersDoes) { expect_golden("llama-nano", kLlamaNano); }

}  // namespace
}  // namespace aliquot::test
