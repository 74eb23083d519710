// Trains models of each type with variations of attention: at every ZeRO stage, in pipelines, with recomputation, and
// from exported, imported and resumed weights. Planned memory equals measured memory in every run.
#include <cmath>
#include <gtest/gtest.h>

#include "apps/models/hugging_face/config.h"
#include "apps/plan/use_costs.h"
#include "tests/apps/train/pipeline_runs.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using namespace pipeline_runs;
using Config = nlohmann::ordered_json;

// The extents are those of pipeline_runs::train().
Config config_of(const char* type, const char* variations) {
  Config config = Config::parse(R"({"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2,
      "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 16, "vocab_size": 251})");
  config["model_type"] = type;
  config.update(Config::parse(variations));
  return config;
}

Config qwen3() {
  return config_of("qwen3", R"({"head_dim": 10, "attention_bias": true, "use_sliding_window": true,
      "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
      "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 4}})");
}
Config qwen2() {
  return config_of("qwen2", R"({"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1,
      "rope_scaling": {"type": "linear", "factor": 2.0}})");
}
Config mistral() { return config_of("mistral", R"({"head_dim": 6, "sliding_window": 4})"); }
Config llama() {
  return config_of("llama", R"({"attention_bias": true, "rope_scaling": {"type": "dynamic", "factor": 2.0}})");
}

class ModelTypes : public testing::TestWithParam<Config (*)()> {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Writes the config.json of the model, with `changes`, and returns its path.
  std::string write(const std::string& name, const char* changes = "{}") const {
    Config config = GetParam()();
    config.update(Config::parse(changes));
    test::write_file(at(name), config.dump());
    return at(name);
  }
  static std::string last_line(const std::string& out) { return out.substr(out.rfind('\n', out.size() - 2) + 1); }
  /// Runs a command and returns the last line that it prints.
  static std::string run(const std::string& words) {
    const test::CommandResult result = test::run_aliquot(words_of(words));
    EXPECT_EQ(result.code, 0) << words << "\n" << result.err;
    return last_line(result.out);
  }
  static void expect_refusal(const std::string& words, const std::string& sentence) {
    const test::CommandResult result = test::run_aliquot(words_of(words));
    EXPECT_EQ(result.code, 1) << words << result.out;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << sentence << "\n" << result.err;
  }

 private:
  test::TemporaryDirectory folder_;
};
INSTANTIATE_TEST_SUITE_P(Types, ModelTypes, testing::Values(qwen3, qwen2, mistral, llama),
                         [](const auto& test) { return test.param()["model_type"].template get<std::string>(); });

TEST_P(ModelTypes, HaveTheSameDigestAtEveryZeroStage) {
  const std::string model = "--model " + write("config.json");
  for (const std::string precision : {"", " --precision bf16", " --precision fp16"}) {
    const std::string common = model + precision + " --zero-stage ";
    const RunResults first = train(2, common + "0");
    EXPECT_EQ(first.losses.size(), 3u);
    for (const std::string more : {"1", "2", "3", "1 --recompute block", "3 --recompute block", "3 --gather copy"}) {
      const RunResults run = train(2, common + more);
      expect_equal(run, first, common + more);
      EXPECT_EQ(run.done["planned"], run.done["measured"]) << more;
    }
  }
}

TEST_P(ModelTypes, TrainWithEveryOptimizer) {
  const std::string model = "--model " + write("config.json");
  for (const std::string optimizer : {"muon", "lion", "sgd"}) {
    const std::string common = model + " --optimizer " + optimizer + " --zero-stage ";
    const RunResults first = train(2, common + "0"), sharded = train(2, common + "3");
    expect_equal(sharded, first, common);
    EXPECT_EQ(sharded.done["planned"], sharded.done["measured"]) << common;
  }
}

TEST_P(ModelTypes, HaveTheSameDigestInPipelines) {
  static test::CaseSelection selection(3);  // of all model types
  const std::string common = "--model " + write("config.json", R"({"tie_word_embeddings": false})") + " --zero-stage ";
  for (const std::string stage : {"0", "2", "3"}) {
    const RunResults alone = train(1, common + stage);
    for (const std::string pipeline :
         {" --pipeline 2", " --pipeline 2 --pipeline-schedule interleaved --recompute block",
          " --pipeline 2 --pipeline-schedule zero-bubble",
          " --pipeline 2 --pipeline-schedule zero-bubble --recompute block"}) {
      if (!selection.next()) continue;
      const std::string options = common + stage + pipeline;
      const RunResults piped = train(2, options);
      expect_equal(piped, alone, options);
      expect_planned_is_measured(piped, 2, options);
    }
  }
}

TEST_P(ModelTypes, QuantizeBetweenNodes) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  static test::CaseSelection selection(2);  // of all model types
  const std::string model = "--model " + write("config.json");
  const Start threads{.environment = {"ALIQUOT_RANKS_PER_NODE=2"}},
      processes{.launched = true, .environment = threads.environment};
  for (const std::string options :
       {" --zero-stage 3 --quantize both", " --zero-stage 3 --quantize weights --precision bf16",
        " --zero-stage 1 --quantize gradients"}) {
    if (!selection.next()) continue;
    const RunResults first = train(4, model + options, threads);
    EXPECT_NE(first.digest, train(4, model + options + " --quantize none", threads).digest) << options;
    EXPECT_EQ(first.done["planned"], first.done["measured"]) << options;
    const RunResults launched = train(4, model + options, processes);
    expect_equal(launched, first, options);
    EXPECT_EQ(launched.done["planned"], launched.done["measured"]) << options;
  }
}

TEST_P(ModelTypes, KeepTheirDefinitionInExportsAndImports) {
  const std::string small = " --quiet --threads 1 --micro-batch 1 --schedule constant ";
  const std::string digest =
      run("train --model " + write("config.json") + small + "--steps 2 --ranks 2 --checkpoint-dir " + at("run"));
  run("checkpoint export " + at("run") + " --out " + at("hf"));
  run("checkpoint import " + at("hf") + " --out " + at("in"));
  run("checkpoint export " + at("in") + " --out " + at("again"));
  const std::string written = test::read_file(at("hf/config.json"));
  EXPECT_EQ(test::read_file(at("again/config.json")), written);
  EXPECT_EQ(Config::parse(written)["model_type"], GetParam()()["model_type"]);
  EXPECT_EQ(parse_model_config(written, "it").shape, read_model_config(at("config.json")).shape);
  // A learning rate of 0 keeps the weights.
  for (const char* weights : {"hf", "run", "in"}) {
    EXPECT_EQ(run("train --init " + at(weights) + small + "--steps 1 --lr 0 --weight-decay 0"), digest) << weights;
  }
  EXPECT_EQ(run("train --model " + at("config.json") + small + "--steps 4 --ranks 2 --checkpoint-dir " + at("whole")),
            run("train --model " + at("hf/config.json") + small +
                "--steps 4 --ranks 2 --resume auto --checkpoint-dir " + at("run")));
}

TEST_P(ModelTypes, PlanTheirMemory) {
  const std::string model = write("config.json");
  const test::CommandResult planned = test::run_aliquot(
      words_of("plan --ranks 2 --zero-stage 2 --micro-batch 1 --format json --machine host --model " + model));
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_GT(Json::parse(planned.out)["plans"][0]["memory"]["peak"].get<int64_t>(), 0);
  // Looks for the largest model that fits, which has more layers.
  run("plan --ranks 2 --zero-stage 2 --device-memory 1MiB --model " + model);
}

class OtherModels : public ModelTypes {};
INSTANTIATE_TEST_SUITE_P(Types, OtherModels, testing::Values(qwen3));

TEST_P(OtherModels, AreRejectedByName) {
  const std::string small = " --quiet --threads 1 --micro-batch 1 --steps 1 ";
  run("train --model " + write("config.json") + small + "--checkpoint-dir " + at("run"));
  run("checkpoint export " + at("run") + " --out " + at("hf"));
  const std::string window = write("window.json", R"({"sliding_window": 6})");
  const std::string layers = write("layers.json", R"({"layer_types": null, "max_window_layers": 0})");
  const std::string scaling = write("scaling.json", R"({"rope_parameters": {"rope_type": "linear", "factor": 4}})");
  const std::string width = write("width.json", R"({"head_dim": 12})");
  const std::string biases = write("biases.json", R"({"attention_bias": false})");
  const std::string norms = write("norms.json", R"({"model_type": "qwen2", "attention_bias": true})");

  const std::string resume = "train" + small + "--resume auto --checkpoint-dir " + at("run") + " --model ";
  expect_refusal(resume + window,
                 "a different model: window (checkpoint 5, this run 6): use --model with the config.json");
  expect_refusal(resume + layers, "window_layers (checkpoint 101, this run all)");
  expect_refusal(resume + scaling, "rope_scaling (checkpoint yarn, this run linear)");
  expect_refusal(resume + width, "model.layers.0.self_attn.k_norm.weight");
  expect_refusal(resume + biases, "model.layers.0.self_attn.k_proj.bias");

  const std::string init = "train" + small + "--init " + at("hf") + " --model ";
  expect_refusal(init + window, "sliding window 5 in 2 of 3 layers): the sliding window differs; leave --model out.");
  expect_refusal(init + layers, "sliding window 5 in 2 of 3 layers): the sliding window differs; leave --model out.");
  expect_refusal(init + scaling, "RoPE theta 1000 with yarn scaling by 4");
  expect_refusal(init + width, "(2 heads, norm epsilon 1e-06, head width 12,");
  expect_refusal(init + width, "head_dim differs; leave --model out.");
  expect_refusal(init + biases, "the biases of attention differs; leave --model out.");
  expect_refusal(init + norms, "the biases of attention differs; leave --model out.");

  for (const std::string* other : {&width, &biases}) {
    std::filesystem::copy_file(*other, at("hf/config.json"), std::filesystem::copy_options::overwrite_existing);
    expect_refusal("checkpoint import " + at("hf") + " --out " + at("in"), "does not describe the weights next to it");
    expect_refusal("train" + small + "--init " + at("hf"), "do not fit this model");
  }
  expect_refusal("train" + small + "--layers 2 --model " + at("config.json"),
                 "layer_types lists the attention of 3 layers, but the model has --layers 2");
}

/// Dynamic scaling defines the angles of sequences that are longer than the context. Other models reject them.
TEST(DynamicScaling, AllowsSequencesLongerThanTheContext) {
  const test::TemporaryDirectory folder;
  const std::string model = folder.path() / "config.json", metrics = folder.path() / "m.jsonl";
  const auto start = [&](const Config& config, const std::string& sequence) {
    test::write_file(model, config.dump());
    return test::run_aliquot(
        words_of("train --quiet --threads 1 --micro-batch 1 --steps 8 --schedule constant --lr 0.03 --metrics " +
                 metrics + " --sequence " + sequence + " --model " + model));
  };
  const auto last_loss = [&](const Config& config, const std::string& sequence) {
    const test::CommandResult result = start(config, sequence);
    EXPECT_EQ(result.code, 0) << result.err;
    RunResults found;
    std::ifstream lines(metrics);
    for (std::string line; std::getline(lines, line);) read_metrics_line(Json::parse(line), found);
    return found.losses.back();
  };
  Config plain = llama();
  plain.erase("rope_scaling");
  EXPECT_EQ(last_loss(llama(), "16"), last_loss(plain, "16"));
  EXPECT_NE(start(plain, "32").err.find("--sequence 32 is longer than the model's context of 16"), std::string::npos);
  plain["max_position_embeddings"] = 32;
  Config scaled = plain;  // theta' = 10000 (2 x 32 / 16 - 1)^(8 / 6)
  scaled["rope_theta"] = 10000 * std::pow(3, 8.0 / 6);
  const double loss = last_loss(llama(), "32"), difference = std::abs(loss - last_loss(plain, "32"));
  EXPECT_GT(difference, 1e-4);
  EXPECT_NEAR(loss, last_loss(scaled, "32"), 0.01 * difference);
}

/// The attention of one token costs 4 operations per key and element of the queries.
TEST(UseCosts, CountTheKeysInTheWindow) {
  ModelShape shape{ModelFamily::kLlama, 2, 8, 2, 2, 8, 100, 10};
  shape.own_head_width = 6;
  const auto all = estimate_use_costs(shape, 1, 100, 1);
  shape.window = 10;
  shape.window_layers = {false, true};
  const auto windowed = estimate_use_costs(shape, 1, 100, 1);
  EXPECT_EQ(windowed[1].forward_seconds, all[1].forward_seconds);
  // On average, a query attends to 10 - 10^2 / 200 keys instead of 50.
  EXPECT_NEAR(all[2].forward_seconds - windowed[2].forward_seconds, 100 * 4 * 12 * (50 - 9.5), 1e-6);
  EXPECT_EQ(windowed[2].backward_seconds, 2 * windowed[2].forward_seconds);
  shape.window = 100;  // no key is outside
  EXPECT_EQ(estimate_use_costs(shape, 1, 100, 1)[2].forward_seconds, all[2].forward_seconds);
}

}  // namespace
}  // namespace aliquot
