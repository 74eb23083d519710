// Compares 20 training steps of adapters with those of PEFT for the same weights and tokens. compare_peft.py --golden
// recorded the library's results.
#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/command_line.h"
#include "tests/apps/models/golden_tokens.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::ordered_json;

const Json& goldens() {
  static const Json all = Json::parse(read_file(ALIQUOT_GOLDEN_PEFT));
  return all;
}

class GoldenPeft : public testing::TestWithParam<std::string> {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  static void run(const std::string& words) {
    std::istringstream text(words);
    const CommandResult result = run_aliquot({std::istream_iterator<std::string>(text), {}});
    ASSERT_EQ(result.code, 0) << words << "\n" << result.err;
  }

  TemporaryDirectory folder_;
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, entry] : goldens().items()) all.push_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenPeft, testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_P(GoldenPeft, TrainsAsInPeft) {
  const Json& golden = goldens()[GetParam()];
  std::string model = at("config.json");
  if (golden["model"].is_string())
    model = golden["model"];
  else
    write_file(model, golden["model"].dump());
  write_file(at("tokens.bin"), golden_tokens());
  run("train --model " + model + " --quiet --steps 1 --lr 0 --weight-decay 0 --sequence 8 --checkpoint-dir " +
      at("first"));
  for (const int tensor : {1, 2}) {
    const std::string metrics = at("run" + std::to_string(tensor) + ".jsonl");
    run("train --init " + at("first") + " --lora " + golden["lora"].get<std::string>() +
        " --ranks 2 --threads 1 --sequence 32 --steps 20 --shuffle off --schedule constant --lr 1e-3 --weight-decay "
        "0.1 "
        "--clip 1 --quiet --data " +
        at("tokens.bin") + " --metrics " + metrics + " --tensor " + std::to_string(tensor) + " --micro-batch " +
        std::to_string(kGoldenBatch * tensor / 2));
    std::istringstream lines(read_file(metrics));
    size_t step = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (!json.contains("step")) continue;
      const double loss = golden["steps"][step][0].get<double>(), norm = golden["steps"][step][1].get<double>();
      EXPECT_NEAR(json["loss"].get<double>(), loss, 1e-6 * loss) << "tensor " << tensor << ", step " << step;
      EXPECT_NEAR(json["grad_norm"].get<double>(), norm, 5e-6 * norm) << "tensor " << tensor << ", step " << step;
      ++step;
    }
    EXPECT_EQ(step, static_cast<size_t>(kGoldenSteps));
  }
}

}  // namespace
}  // namespace aliquot::test
