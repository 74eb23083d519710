// Tests aliquot plan: planned memory against the ZeRO paper and against aliquot train, simulation, formats and errors.
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "apps/models/gpt2.h"
#include "apps/models/parameters.h"
#include "kernels/system/machine_memory.h"
#include "kernels/system/thread_pool.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::CommandResult;
using Json = nlohmann::json;

Json planned(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  words.insert(words.end(), {"--format", "json"});
  const CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  return Json::parse(result.out).at("plans");
}

/// The paper counts, for each parameter, 2 bytes of parameters, 2 of gradients and 12 of optimizer state. Each is
/// divided by the number of ranks if the ZeRO stage shards it.
TEST(Plan, AgreesWithTheZeroPaper) {
  const double psi = 7.5e9;
  for (const int ranks : {1, 16, 64, 1024}) {
    const Json plans = planned({"--params", "7.5b", "--units", "48", "--ranks", std::to_string(ranks), "--stages",
                                "all", "--master", "fp32", "--precision", "bf16", "--gradients", "bf16"});
    ASSERT_EQ(plans.size(), 4u);
    for (int stage = 0; stage < 4; ++stage) {
      const Json& memory = plans[stage]["memory"];
      const auto share = [&](int from) { return stage >= from ? 1.0 / ranks : 1.0; };
      EXPECT_NEAR(memory["optimizer"].get<double>(), 12 * psi * share(1), 12 * psi * share(1) * 2e-3) << stage;
      EXPECT_NEAR(memory["gradients"].get<double>(), 2 * psi * share(2), 2 * psi * share(2) * 2e-3) << stage;
      EXPECT_NEAR(memory["parameters"].get<double>(), 2 * psi * share(3), 2 * psi * share(3) * 2e-3) << stage;
      EXPECT_EQ(plans[stage]["ranks"], ranks);
      EXPECT_EQ(plans[stage]["zero_stage"], stage);
    }
  }
}

/// With two replicas of four ranks, each rank stores as many parameters and as much optimizer state as in a world of
/// four ranks, within 0.1 %.
TEST(Plan, AReplicaUsesTheMemoryOfAWorldOfItsSize) {
  const auto with = [&](const char* ranks, const char* replicas) {
    return planned({"--params", "1b", "--ranks", ranks, "--replicas", replicas, "--zero-stage", "3"})[0];
  };
  const Json four = with("4", "1"), eight = with("8", "2");
  for (const char* category : {"parameters", "optimizer"}) {
    const auto alone = four["memory"][category].get<double>();
    EXPECT_NEAR(eight["memory"][category].get<double>(), alone, 1e-3 * alone) << category;
  }
}

TEST(Plan, OffloadedStateIsCountedSeparately) {
  const std::vector<std::string> model = {"--params",     "1b", "--ranks",   "4",
                                          "--zero-stage", "2",  "--machine", "dgx-h100"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), model.begin(), model.end());
    return planned(words)[0];
  };
  const Json here = with({}), host = with({"--offload", "host"}), disk = with({"--offload", "disk:/scratch"});
  EXPECT_EQ(here["offloaded"], 0);
  EXPECT_EQ(host["offloaded"], here["memory"]["optimizer"]);
  EXPECT_EQ(host["memory"]["optimizer"], 0);
  EXPECT_LT(host["memory"]["peak"], here["memory"]["peak"]);
  EXPECT_EQ(disk["memory"], host["memory"]);
  EXPECT_GT(host["step_seconds"], here["step_seconds"]);
  EXPECT_GT(disk["step_seconds"], host["step_seconds"]);
}

TEST(Plan, PlannedMemoryEqualsTheMeasuredMemoryOfTrain) {
  test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "run.jsonl";
  for (const auto& [stage, accumulate] : std::vector<std::pair<std::string, std::string>>{
           {"0", "1"}, {"1", "1"}, {"2", "1"}, {"3", "1"}, {"0", "2"}, {"1", "2"}, {"2", "2"}, {"3", "2"}}) {
    const std::string recompute = stage > "1" ? "block" : "none";
    const std::vector<std::string> same = {"--ranks", "2",           "--zero-stage", stage,          "--threads",
                                           "1",       "--recompute", recompute,      "--accumulate", accumulate};
    const Json memory = planned(same)[0]["memory"];
    std::vector<std::string> train = {"train", "--steps", "2", "--quiet", "--metrics", metrics};
    train.insert(train.end(), same.begin(), same.end());
    ASSERT_EQ(test::run_aliquot(train).code, 0);
    std::ifstream file(metrics);
    Json done;
    for (std::string line; std::getline(file, line);) done = Json::parse(line);
    for (const char* category : {"parameters", "gradients", "optimizer", "slots", "communication", "activations"})
      EXPECT_EQ(memory[category], done["done"]["measured"][category]) << "ZeRO stage " << stage << " " << category;
    EXPECT_EQ(memory["peak"], done["done"]["measured_peak"]) << "ZeRO stage " << stage;
  }
}

TEST(Plan, AccumulatesAtEveryZeroStage) {
  EXPECT_EQ(planned({"--stages", "all", "--accumulate", "4"}).size(), 4u);
  EXPECT_EQ(planned({"--params", "7b", "--ranks", "8", "--stages", "all", "--accumulate", "4"}).size(), 4u);
  for (const char* into : {"full", "shard"})
    planned({"--zero-stage", "3", "--accumulate", "2", "--accumulate-into", into});
}

/// plan and train derive the same shape from --width, --heads, --layers and --vocab.
TEST(Plan, ShapeFlagsActAsInTrain) {
  for (const std::vector<std::string>& change :
       {std::vector<std::string>{"--width", "64"}, {"--heads", "8"}, {"--layers", "2", "--vocab", "100"}}) {
    std::vector<std::string> plan = change, train = change;
    plan.insert(plan.end(), {"--ranks", "2"});
    train.insert(train.begin(), "train");
    train.insert(train.end(), {"--ranks", "2", "--dry-run"});
    const CommandResult shown = test::run_aliquot(train);
    EXPECT_EQ(shown.code, 0) << shown.err;
    const std::string bytes = std::to_string(planned(plan)[0]["memory"]["parameters"].get<int64_t>());
    EXPECT_NE(shown.out.find(bytes), std::string::npos) << change[0] << ": " << bytes << "\n" << shown.out;
  }
}

TEST(Plan, Gpt2ParametersMatchTheModel) {
  for (const char* name : {"gpt2-nano", "gpt2-124m"}) {
    const ModelShape shape = find_model_preset(name)->shape;
    ThreadPool pool(1);
    const auto loops = make_host_backend(pool);
    const Gpt2 model(shape, {}, *loops);
    const ModelSpec spec = parameters_of(shape);
    ASSERT_EQ(spec.units.size(), model.units().size());
    for (std::size_t u = 0; u < spec.units.size(); ++u) {
      EXPECT_EQ(spec.units[u].name, model.units()[u].name);
      EXPECT_EQ(spec.units[u].gradients, model.units()[u].gradients);
      ASSERT_EQ(spec.units[u].parameters.size(), model.units()[u].tensors.size()) << spec.units[u].name;
      for (std::size_t t = 0; t < spec.units[u].parameters.size(); ++t) {
        const TensorSpec& tensor = spec.units[u].parameters[t].tensor;
        EXPECT_EQ(tensor.name, spec.units[u].name + "." + model.units()[u].tensors[t].name);
        EXPECT_EQ(tensor.shape, model.units()[u].tensors[t].shape);
      }
    }
    ASSERT_EQ(spec.uses.size(), model.uses().size());
    for (std::size_t use = 0; use < spec.uses.size(); ++use) EXPECT_EQ(spec.uses[use][0], model.uses()[use]);
  }
}

TEST(Plan, PresetsHaveThePublishedParameterCounts) {
  const std::pair<const char*, int64_t> models[] = {{"gpt2-124m", 124'439'808},
                                                    {"gpt2-1.5b", 1'557'611'200},
                                                    {"llama-1b", 1'235'814'400},
                                                    {"llama-8b", 8'030'261'248}};
  for (const auto& [name, count] : models) {
    EXPECT_EQ(planned({"--model", name, "--ranks", "8"})[0]["parameters"], count) << name;
  }
}

TEST(Plan, LargestModelFitsAndOneMoreLayerDoesNot) {
  const Json at = planned({"--ranks", "8", "--device-memory", "1GiB", "--model", "gpt2-124m", "--zero-stage", "2",
                           "--micro-batch", "1", "--sequence", "128"})[0];
  const int64_t largest = at["largest_parameters"];
  const int64_t block = 7'087'872, rest = 124'439'808 - 12 * block;
  const int64_t layers = (largest - rest) / block;
  EXPECT_EQ(largest, rest + layers * block);
  const auto bytes = [](int64_t count) {
    return planned({"--ranks", "8", "--model", "gpt2-124m", "--zero-stage", "2", "--micro-batch", "1", "--sequence",
                    "128", "--layers", std::to_string(count)})[0]["rank_bytes"]
        .get<int64_t>();
  };
  EXPECT_LE(bytes(layers), int64_t{1} << 30);
  EXPECT_GT(bytes(layers + 1), int64_t{1} << 30);
}

TEST(Plan, SimulatesAndWritesATrace) {
  test::TemporaryDirectory directory;
  const std::string trace = directory.path() / "trace.json";
  const Json plan = planned(
      {"--model", "llama-8b", "--ranks", "64", "--precision", "bf16", "--machine", "dgx-h100", "--trace", trace})[0];
  EXPECT_GT(plan["step_seconds"].get<double>(), 0);
  EXPECT_GT(plan["tokens_per_second"].get<double>(), 0);
  EXPECT_GT(plan["hidden_share"].get<double>(), 0.1);
  std::ifstream file(trace);
  EXPECT_GT(Json::parse(file)["traceEvents"].size(), 100u);
  std::ofstream(directory.path() / "slow.json") << R"({"inside_node": {"bytes_per_second": 1e6}})";
  const Json slow = planned({"--ranks", "4", "--gather", "copy", "--machine", directory.path() / "slow.json"})[0];
  const Json fast = planned({"--ranks", "4", "--gather", "copy", "--machine", "host"})[0];
  EXPECT_GT(slow["step_seconds"].get<double>(), 5 * fast["step_seconds"].get<double>());
}

TEST(Plan, ReadsTheMachineFileOfDoctor) {
  test::TemporaryDirectory directory;
  const std::string path = directory.path() / "machine.json";
  const CommandResult measured = test::run_aliquot({"doctor", "--measure", path});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_NE(measured.out.find("GFLOP/s"), std::string::npos) << measured.out;
  const Json file = Json::parse(std::ifstream(path));
  // The ranges are so wide that every processor is within them.
  const auto within = [](const Json& rate, double least, double most) {
    EXPECT_GT(rate.get<double>(), least);
    EXPECT_LT(rate.get<double>(), most);
  };
  within(file["flops_per_second"], 1e8, 1e14);
  within(file["copy_bytes_per_second"], 1e8, 1e13);
  within(file["update_seconds_per_element"], 1e-12, 1e-6);
  within(file["inside_node"]["bytes_per_second"], 1e7, 1e13);
  within(file["inside_node"]["latency_seconds"], 1e-8, 1e-1);
  EXPECT_EQ(file["memory_bytes"], machine_memory_bytes());
  const Json plan = planned({"--ranks", "2", "--machine", path})[0];
  EXPECT_GT(plan["step_seconds"].get<double>(), 0);
  EXPECT_EQ(plan["memory_limit"], machine_memory_bytes() / 2);
  const CommandResult again = test::run_aliquot({"doctor", "--measure", path});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("already exists"), std::string::npos) << again.err;
  EXPECT_EQ(Json::parse(std::ifstream(path)), file);
  EXPECT_EQ(test::run_aliquot({"doctor", "--measur", path}).code, 1);
}

/// `beside_compute` has the rates of the link while ranks compute. Low rates lengthen a step only if compute and data
/// movement share cores (`cores_per_thread` above 0 and at most 1).
TEST(Plan, SlowLinksBesideComputeLengthenTheStep) {
  test::TemporaryDirectory directory;
  const auto seconds = [&](const std::string& more) {
    const std::string path = directory.path() / "machine.json";
    std::ofstream(path) << R"({"between_nodes": {"bytes_per_second": 1e8, "latency_seconds": 1e-5})" << more << "}";
    return planned({"--ranks", "2", "--ranks-per-node", "1", "--machine", path})[0]["step_seconds"].get<double>();
  };
  const std::string slow = R"(, "beside_compute": {"bytes_per_second": 1e6, "latency_seconds": 1e-3})";
  const double apart = seconds("");
  EXPECT_DOUBLE_EQ(seconds(slow), apart);
  EXPECT_DOUBLE_EQ(seconds(slow + R"(, "cores_per_thread": 2)"), apart);
  const double together = seconds(slow + R"(, "cores_per_thread": 1)");
  EXPECT_GT(together, 1.02 * apart);
  EXPECT_GT(seconds(slow + R"(, "cores_per_thread": 1, "beside_compute_share": 0.5)"), together);
  EXPECT_GT(seconds(slow + R"(, "cores_per_thread": 0.5)"), 1.02 * together);
}

/// With a profile of a run on one rank, the predicted step time is close to the measured step times.
TEST(Plan, ProfilePredictsTheStepTime) {
  test::TemporaryDirectory directory;
  const std::string path = directory.path() / "run.jsonl";
  const CommandResult run = test::run_aliquot(
      {"train", "--quiet", "--ranks", "1", "--threads", "1", "--layers", "2", "--steps", "6", "--metrics", path});
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<double> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    if (json.contains("step") && json["step"] > 1) steps.push_back(json["step_seconds"]);
  }
  std::ranges::sort(steps);
  const auto with_profile = [&](const char* layers) {
    return std::vector<std::string>{"--ranks", "1", "--layers", layers, "--machine", "host", "--profile", path};
  };
  const double predicted = planned(with_profile("2"))[0]["step_seconds"];
  EXPECT_GT(predicted, 0.4 * steps.front());
  EXPECT_LT(predicted, 1.5 * steps.back());
  const auto refuses = [](std::vector<std::string> words, std::string_view sentence) {
    words.insert(words.begin(), "plan");
    const CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << result.err;
  };
  refuses(with_profile("3"), "CostModel::uses has");
  std::vector<std::string> other_batch = with_profile("2");
  other_batch.insert(other_batch.end(), {"--micro-batch", "3"});
  refuses(other_batch,
          "recorded with --micro-batch 4, expected --micro-batch 3: record it again, or plan with --micro-batch 4.");
  refuses({"--profile", "/no/such"}, "cannot be read: No such file or directory.");
  std::ofstream(path) << "no metrics\n";
  refuses(with_profile("2"), "expected a line of aliquot train --metrics");
  std::ofstream(path) << R"({"step":1,"step_seconds":1})"
                      << "\n";
  refuses(with_profile("2"), "no recorded step");
}

TEST(Plan, PrintsTextAndCsv) {
  const CommandResult text = test::run_aliquot({"plan", "--stages", "1,3", "--ranks", "2", "--schedule"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("stage 1 on 2 ranks"), std::string::npos);
  EXPECT_NE(text.out.find("backward h.0"), std::string::npos);
  const CommandResult csv = test::run_aliquot({"plan", "--stages", "all", "--ranks", "2", "--format", "csv"});
  EXPECT_EQ(csv.code, 0);
  EXPECT_EQ(std::ranges::count(csv.out, '\n'), 5);
  EXPECT_NE(csv.out.find("memory.parameters"), std::string::npos);
}

TEST(Plan, ComparesZeroStagesIn100Columns) {
  const CommandResult table =
      test::run_aliquot({"plan", "--model", "gpt2-1.5b", "--ranks", "1024", "--stages", "all", "--machine", "dgx-h100",
                         "--device-memory", "80GiB", "--offload", "host"});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* what :
       {"stage 0", "stage 3", "offloaded", "  largest", "sent by a node", "fits in 80.0 GiB", "tokens/s"})
    EXPECT_NE(table.out.find(what), std::string::npos) << what << "\n" << table.out;
  std::istringstream lines(table.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

std::string plan_text(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  const CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

/// A run that needs 237 GiB a rank does not fit on a GPU with 80 GB.
TEST(Plan, SaysWhetherARankHasEnoughMemory) {
  const std::vector<std::string> large = {"--model", "llama-8b", "--ranks", "64", "--machine", "dgx-h100"};
  const auto with = [&large](std::vector<std::string> more) {
    more.insert(more.begin(), large.begin(), large.end());
    return more;
  };
  const std::string one = plan_text(with({"--zero-stage", "0"}));
  EXPECT_NE(one.find("  does not fit in 79.0 GiB of a GPU of dgx-h100: a rank needs 237 GiB\n"), std::string::npos)
      << one;
  EXPECT_NE(one.find("  to lower the memory: a higher --zero-stage, more --ranks, --recompute block"),
            std::string::npos)
      << one;
  EXPECT_NE(one.find("  simulated on dgx-h100 as if it had enough memory: "), std::string::npos) << one;
  const Json plans = planned(with({"--stages", "all", "--micro-batch", "1"}));
  std::string fits;
  for (const Json& plan : plans) {
    EXPECT_EQ(plan["memory_limit"], int64_t{79} << 30);
    EXPECT_EQ(plan["fits"], plan["rank_bytes"] <= plan["memory_limit"]);
    fits += plan["fits"] ? '1' : '0';
  }
  EXPECT_EQ(fits, "0111");
  const std::string table = plan_text(with({"--stages", "all", "--micro-batch", "1"}));
  EXPECT_TRUE(std::regex_search(table, std::regex("\n  in 79.0 GiB +does not fit +fits +fits +fits\n"))) << table;
  EXPECT_TRUE(std::regex_search(table, std::regex("\n  seconds per step +- +[0-9.]+ +[0-9.]+ +[0-9.]+\n"))) << table;
  EXPECT_EQ(table.find("to lower the memory"), std::string::npos) << table;
  EXPECT_NE(plan_text(with({"--stages", "all"})).find("to lower the memory: more --ranks"), std::string::npos);
}

TEST(Plan, TheMemoryOfAMachineHasSeveralSources) {
  test::TemporaryDirectory directory;
  const std::string path = directory.path() / "machine.json";
  const auto limit = [&](const std::string& text) {
    std::ofstream(path) << text;
    return planned({"--ranks", "4", "--machine", path})[0].value("memory_limit", int64_t{-1});
  };
  EXPECT_EQ(limit(R"({"memory_bytes": 4000})"), 1000);  // of a host, which has four ranks
  EXPECT_EQ(limit(R"({"memory_bytes": 4000, "has_gpus": true})"), 4000);
  EXPECT_EQ(limit(R"({"like": "dgx-h200"})"), int64_t{139} << 30);
  EXPECT_EQ(limit("{}"), -1);
  const int64_t here = planned({"--ranks", "1"})[0]["memory_limit"];
  EXPECT_EQ(here, machine_memory_bytes());
  EXPECT_EQ(planned({"--ranks", "4"})[0]["memory_limit"], here / 4);
  EXPECT_EQ(planned({"--ranks", "4", "--ranks-per-node", "2"})[0]["memory_limit"], here / 2);
  EXPECT_EQ(planned({"--device-memory", "3GiB"})[0]["memory_limit"], int64_t{3} << 30);
  EXPECT_FALSE(plan_text({"--ranks", "2"}).find(" of this machine, which has ") == std::string::npos);
}

TEST(Plan, MachinesWithGpusComputeInBf16ByDefault) {
  EXPECT_NE(plan_text({"--machine", "dgx-a100"}).find(", bfloat16, "), std::string::npos);
  EXPECT_NE(plan_text({"--machine", "dgx-a100", "--precision", "fp32"}).find(", float32, "), std::string::npos);
  EXPECT_NE(plan_text({}).find(", float32, "), std::string::npos);
}

/// plan and train choose the same options.
TEST(Plan, PlansWithinAMemoryBudgetAsTrainDoes) {
  const std::vector<std::string> same = {"--ranks", "2", "--threads", "1", "--memory-budget", "14MiB"};
  const Json plan = planned(same)[0];
  EXPECT_TRUE(plan["fits"]);
  EXPECT_LE(plan["rank_bytes"], 14 << 20);
  EXPECT_GT(planned({"--ranks", "2", "--threads", "1"})[0]["rank_bytes"], 14 << 20);
  std::vector<std::string> train = {"train", "--dry-run"};
  train.insert(train.end(), same.begin(), same.end());
  const CommandResult shown = test::run_aliquot(train);
  const std::string peak = std::to_string(plan["memory"]["peak"].get<int64_t>());
  EXPECT_NE(shown.out.find(peak), std::string::npos) << peak << "\n" << shown.out;
  EXPECT_NE(plan_text(same).find("  chosen: gathers as "), std::string::npos);
  const std::string small = plan_text({"--memory-budget", "1MiB"});
  EXPECT_NE(small.find("  does not fit in 1.00 MiB of --memory-budget: a rank needs "), std::string::npos) << small;
  EXPECT_NE(small.find("  --memory-budget is 1.00 MiB, but the smallest plan found needs "), std::string::npos)
      << small;
}

TEST(Plan, CountsATrillionParameters) {
  EXPECT_EQ(planned({"--params", "1t", "--ranks", "64"})[0]["parameters"], 1'000'000'000'000);
}

TEST(Plan, NamesUnsupportedKindsOfModels) {
  test::TemporaryDirectory directory;
  const std::string config = directory.path() / "config.json";
  const auto error = [](const std::string& model) {
    const CommandResult result = test::run_aliquot({"plan", "--model", model});
    EXPECT_EQ(result.code, 1);
    return result.err;
  };
  for (const char* model : {"mixtral-8x7b", "Qwen3-30B-A3B", "deepseek-v3", "llama-4-scout"})
    EXPECT_NE(error(model).find("mixture-of-experts models are not supported"), std::string::npos) << error(model);
  EXPECT_NE(error("bert-base").find("encoder models are not supported"), std::string::npos);
  for (const char* model : {"gpt2-small", "llama-450b"})
    EXPECT_EQ(error(model).find("not supported"), std::string::npos) << error(model);
  test::write_file(config, R"({"model_type": "qwen3_moe"})");
  EXPECT_NE(error(config).find("; mixture-of-experts models are not implemented."), std::string::npos) << error(config);
}

TEST(Plan, RejectsInvalidOptions) {
  const auto refuses = [](std::vector<std::string> words, std::string_view sentence) {
    words.insert(words.begin(), "plan");
    const CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << result.err;
  };
  refuses({"--stages", "1-3"}, "a list such as 1,3");
  refuses({"--machine", "nowhere"}, "a JSON file of rates");
  refuses({"--model", "gpt2-124"}, "gpt2-124m");
  refuses({"--params", "7b", "--recompute", "block"}, "--recompute block needs the layers of a model");
  refuses({"--params", "7b", "--optimizer", "muon"}, "--optimizer muon needs the matrices of a model");
  refuses({"--trace", "/nowhere/step.json"}, "--trace /nowhere/step.json: the file could not be written");
  refuses({"--reproducible", "--ranks", "3"}, "the number of ranks is 3: expected a power of two, for example 2 or 4");
  refuses({"--gather", "view", "--ranks", "16", "--ranks-per-node", "8"}, "all ranks on one host");
}

TEST(Plan, RejectsInvalidMachineFiles) {
  test::TemporaryDirectory directory;
  const std::string path = directory.path() / "machine.json";
  const std::string deep = R"({"has_gpus": )" + std::string(1 << 20, '[');
  const std::string wide = R"({"has_gpus": ")" + std::string(1 << 20, 'a') + "\"}";
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[1]", "expected a JSON object"},
      {R"({"like": "a-laptop"})", R"(invalid value "a-laptop" for like: expected host)"},
      {R"({"inside_node": 5})", "invalid value 5 for inside_node: expected an object"},
      {R"({"between_nodes": {"bytes_per_second": 0}})",
       "invalid value 0 for bytes_per_second: expected a number above 0"},
      {R"({"cores_per_thread": -1})", "invalid value -1 for cores_per_thread: expected a number of 0 or more"},
      {R"({"has_gpus": 8})", "invalid value 8 for has_gpus: expected true or false"},
      {R"({"flop_per_second": 1})", "unknown key 'flop_per_second'. Did you mean flops_per_second"},
      {R"({"train_batch_size": 8})", "unknown key 'train_batch_size'. Known keys are like, has_gpus"},
      {R"({"inside_node": {"latency": 1}})", "inside_node: unknown key 'latency'."},
      {R"({"like": "host", "like": "host"})", "the key like occurs twice"},
      {"{\n\"like\": ", "machine.json:2: invalid JSON"},
      {deep.c_str(), "nested more than 16 levels deep"},
      {wide.c_str(), "invalid value \"aaaaaaaa"}};
  for (const auto& [text, sentence] : cases) {
    test::write_file(path, text);
    const CommandResult result = test::run_aliquot({"plan", "--machine", path});
    EXPECT_EQ(result.code, 1) << text;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << result.err;
    EXPECT_LT(result.err.size(), 1000u);
  }
}

}  // namespace
}  // namespace aliquot
