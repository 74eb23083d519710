// Compares the most probable continuations of prompts with those of the Hugging Face library transformers, for models
// of every type. compare_transformers.py --greedy --golden recorded those of the library.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/apps/inference/support.h"

namespace aliquot::test {
namespace {

class Greedy : public InferenceTest {};

TEST_F(Greedy, EqualsTransformersForEveryModel) {
  const auto goldens = nlohmann::ordered_json::parse(std::ifstream(ALIQUOT_GOLDEN_GREEDY));
  std::set<std::string> types;
  int case_number = 0;
  for (const auto& [name, golden] : goldens.items()) {
    SCOPED_TRACE(name);
    std::string model = at(name + ".json");
    if (golden["model"].is_string()) {
      model = golden["model"];
    } else {
      write_file(model, golden["model"].dump());
      types.insert(golden["model"]["model_type"]);
    }
    // A learning rate of 0 keeps the initial weights.
    output_of("train --quiet --steps 1 --lr 0 --weight-decay 0 --sequence 8 --threads 1 --model " + model +
              " --checkpoint-dir " + at(name));
    for (const auto& one : golden["cases"]) {
      std::string prompt, expected;
      for (const int token : one["prompt"]) prompt += (prompt.empty() ? "" : ",") + std::to_string(token);
      for (const int token : one["prompt"]) expected += std::to_string(token) + " ";
      for (const int token : one["tokens"]) expected += std::to_string(token) + " ";
      expected.back() = '\n';
      const std::string ranks = case_number++ % 2 == 0 ? "1" : "2";
      EXPECT_EQ(output_of("sample --threads 1 --temperature 0 --checkpoint " + at(name) + " --ranks " + ranks +
                          " --tokens " + std::to_string(one["tokens"].size()) + " --prompt-tokens " + prompt),
                expected);
    }
  }
  EXPECT_EQ(types, (std::set<std::string>{"gpt2", "llama", "mistral", "qwen2", "qwen3"}));
  EXPECT_GE(case_number, 60);
}

}  // namespace
}  // namespace aliquot::test
