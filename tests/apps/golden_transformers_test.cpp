// Whole training against Hugging Face's transformers: losses and norms of 20 steps from the same weights and tokens, as
// compare_transformers.py wrote them down once.
#include "tests/apps/golden_transformers.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kBatch = 4, kSequence = 32;

/// The same as tokens() there: 32 tokens of the vocabulary, drawn by the C standard's own example.
std::string golden_tokens() {
  uint64_t state = 12345;
  std::string bytes;
  for (int64_t i = 0; i < kSteps * kBatch * kSequence + 1; ++i) {
    state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
    bytes += static_cast<char>((state >> 16) % 32);
    bytes += '\0';  // 16 bits, the low byte first
  }
  return bytes;
}

void expect_golden(const char* model, std::span<const GoldenStep> golden) {
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

TEST(Golden, Gpt2TrainsAsTransformersDoes) { expect_golden("gpt2-nano", kGpt2Nano); }

TEST(Golden, LlamaTrainsAsTransformersDoes) { expect_golden("llama-nano", kLlamaNano); }

}  // namespace
}  // namespace aliquot::test
