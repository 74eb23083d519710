// Compares losses and gradient norms of 20 training steps with those of the Hugging Face library transformers for the
// same weights and tokens. compare_transformers.py --golden recorded the library's results, for models of every type
// and variation.
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/apps/command_line.h"
#include "tests/apps/models/golden_tokens.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

const nlohmann::ordered_json& goldens() {
  static const nlohmann::ordered_json all = nlohmann::ordered_json::parse(read_file(ALIQUOT_GOLDEN_TRANSFORMERS));
  return all;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : goldens().items()) names.push_back(name);
  return names;
}

/// Trains with --model `model` on `ranks` ranks in tensor groups of `tensor` ranks. Compares losses and gradient norms
/// with `golden`: a pair of numbers for each step. `norm_limit` is the largest relative difference of norms.
void expect_golden(const std::string& model, const nlohmann::ordered_json& golden, int ranks, int tensor,
                   double norm_limit) {
  TemporaryDirectory directory;
  const std::string data = directory.path() / "tokens.bin", metrics = directory.path() / "run.jsonl";
  write_file(data, golden_tokens());
  const CommandResult result = run_aliquot({"train",
                                            "--model",
                                            model,
                                            "--ranks",
                                            std::to_string(ranks),
                                            "--tensor",
                                            std::to_string(tensor),
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
                                            std::to_string(kGoldenBatch * tensor / ranks)});
  ASSERT_EQ(result.code, 0) << result.err;
  std::ifstream file(metrics);
  size_t step = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("step")) continue;
    ASSERT_LT(step, golden.size());
    const double loss = golden[step][0].get<double>(), norm = golden[step][1].get<double>();
    EXPECT_NEAR(json["loss"].get<double>(), loss, 2e-6 * loss) << step;
    EXPECT_NEAR(json["grad_norm"].get<double>(), norm, norm_limit * norm) << step;
    ++step;
  }
  EXPECT_EQ(step, static_cast<size_t>(kGoldenSteps));
  EXPECT_EQ(step, golden.size());
}

class Golden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(golden_names()), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace_if(
      name, [](char letter) { return letter == '-' || letter == '.'; }, '_');
  return name;
});

/// Trains the golden model `name`: see expect_golden().
void train_golden(const std::string& name, int ranks, int tensor, double norm_limit = 5e-6) {
  const nlohmann::ordered_json& golden = goldens()[name];
  TemporaryDirectory directory;
  std::string model = directory.path() / "config.json";
  if (golden["model"].is_string()) {
    model = golden["model"];
  } else {
    write_file(model, golden["model"].dump());
  }
  expect_golden(model, golden["steps"], ranks, tensor, norm_limit);
}

TEST_P(Golden, TrainsAsInTransformers) { train_golden(GetParam(), 2, 1); }

/// With 4 ranks, ranks of most models share heads of keys and values. Of tinyllama, a norm in fp32 has a large error:
/// at one step the norms of transformers in fp32 and in fp64 differ by 6.4e-6.
TEST_P(Golden, TrainsAsInTransformersInTensorGroups) {
  for (const int tensor : {2, 4}) {
    SCOPED_TRACE(tensor);
    train_golden(GetParam(), tensor, tensor, GetParam() == "tinyllama" ? 1e-5 : 5e-6);
  }
}

TEST(GoldenModels, HaveEveryModelTypeAndRopeScaling) {
  std::set<std::string> types, scalings;
  for (const auto& [name, golden] : goldens().items()) {
    const auto& model = golden["model"];
    if (!model.is_object()) continue;
    types.insert(model["model_type"]);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!model.contains(key)) continue;
      scalings.insert(model[key].contains("type") ? model[key]["type"] : model[key]["rope_type"]);
    }
  }
  EXPECT_EQ(types, (std::set<std::string>{"gpt2", "llama", "mistral", "qwen2", "qwen3"}));
  EXPECT_EQ(scalings, (std::set<std::string>{"linear", "dynamic", "llama3", "yarn"}));
}

}  // namespace
}  // namespace aliquot::test
