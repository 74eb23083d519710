#pragma once
// Compares runs that others published with the predictions of `aliquot plan` for these runs.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace aliquot {

struct PublishedRun {
  std::string machine;  // name of a machine preset
  std::string words;    // flags of `aliquot plan`
  int gpus = 1;
  nlohmann::json rates = nlohmann::json::object();  // rates that replace those of the preset
};

/// Returns what `aliquot plan --format json` predicts if a GPU computes at `flops_per_second`. `more` has additional
/// flags. Throws std::runtime_error if the program fails.
nlohmann::json predicted_plan(const PublishedRun& run, double flops_per_second, const std::string& more = "");

/// Returns the tokens per second that predicted_plan() predicts for these arguments, divided by the number of GPUs.
double tokens_per_gpu(const PublishedRun& run, double flops_per_second, const std::string& more = "");

/// Returns the compute rate of a GPU for which the plan predicts `tokens_per_gpu`.
double calibrated_flops(const PublishedRun& run, double tokens_per_gpu);

/// Registers a benchmark that shows a published and a predicted value, and the error.
void add_published(const std::string& name, double published, std::function<double()> predicted);

}  // namespace aliquot
