#pragma once
// Runs of aliquot train with and without a pipeline, for tests that compare them.

#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot::pipeline_runs {

using Json = nlohmann::json;

inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream all(text);
  return {std::istream_iterator<std::string>(all), {}};
}

struct RunResults {
  std::string digest;
  std::vector<double> losses, eval_losses, norms;
  std::vector<int> skipped;  // numbers of the skipped steps
  Json done;
};

inline void read_metrics_line(const Json& object, RunResults& found) {
  if (object.contains("loss")) found.losses.push_back(object["loss"]);
  if (object.contains("eval_loss")) found.eval_losses.push_back(object["eval_loss"]);
  if (object.contains("grad_norm"))  // null if it is not finite
    found.norms.push_back(object["grad_norm"].is_number() ? object["grad_norm"].get<double>() : -1.0);
  if (object.value("skipped", false)) found.skipped.push_back(object["step"]);
  if (object.contains("done")) found.done = object["done"];
}

struct Start {
  bool launched = false;                      // true: by mpirun; false: ranks are threads
  std::vector<std::string> environment = {};  // additional variables as "NAME=value"
};

/// Trains a small model on `ranks` ranks with a global batch of 16, unless the options set the number of micro-batches.
/// Expects that the command succeeds.
inline RunResults train(int ranks, const std::string& options, const Start& start = {}) {
  const test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "m.jsonl", data = directory.path() / "d.bytes";
  std::ofstream(data) << std::string(2000, 'a') << std::string(2000, 'b');
  std::vector<std::string> words = words_of(
      "train --steps 3 --layers 3 --width 16 --heads 2 --vocab 251 --context 16 --micro-batch 1 --threads 1 --quiet "
      "--eval-every 2 --eval-batches 2");
  words.insert(words.end(), {"--eval-data", data, "--metrics", metrics});
  const auto more = words_of(options);
  words.insert(words.end(), more.begin(), more.end());
  if (options.find("--accumulate ") == std::string::npos) words.insert(words.end(), {"--global-batch", "16"});
  if (options.find("--accumulate-into") == std::string::npos) words.insert(words.end(), {"--accumulate-into", "shard"});
  if (!start.launched) words.insert(words.end(), {"--ranks", std::to_string(ranks)});
  const test::CommandResult result = start.launched
                                         ? test::run_aliquot_under_mpirun(ranks, words, start.environment)
                                         : test::run_program(test::aliquot_program(), words, start.environment);
  EXPECT_EQ(result.code, 0) << options << "\n" << result.err;
  RunResults found;
  found.digest = result.out;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) read_metrics_line(Json::parse(line), found);
  return found;
}

inline void expect_equal(const RunResults& a, const RunResults& b, const std::string& what) {
  EXPECT_EQ(a.digest, b.digest) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.eval_losses, b.eval_losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_EQ(a.skipped, b.skipped) << what;
}

inline void expect_planned_is_measured(const RunResults& run, std::size_t stages, const std::string& what) {
  EXPECT_EQ(run.done["planned"], run.done["measured"]) << what;
  ASSERT_EQ(run.done["stages"].size(), stages) << what;
  for (const Json& stage : run.done["stages"]) {
    EXPECT_EQ(stage["planned"], stage["measured"]) << what;
    EXPECT_EQ(stage["planned_peak"], stage["measured_peak"]) << what;
  }
}

}  // namespace aliquot::pipeline_runs
