#include "apps/metrics/run_record.h"

#include <fmt/format.h>
#include <fstream>
#include <map>

#include "apps/metrics/metrics_lines.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

bool is_step(const Json& object) { return object.contains("step") && object["step"].is_number_integer(); }

}  // namespace

RunRecord read_run_record(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError(path + ": the file cannot be read: expected a file of aliquot train --metrics.");
  RunRecord record{.path = path, .run = {}, .steps = {}, .done = {}, .stragglers = {}};
  std::map<int64_t, Json> steps;
  const int bad_line = read_metrics_lines(file, [&](const Json& object) {
    if (object.contains("run")) {
      record.run = object["run"];
      record.done = nullptr;  // the run was resumed
    } else if (object.contains("done")) {
      record.done = object["done"];
    } else if (object.contains("stragglers")) {
      record.stragglers = object["stragglers"];
    } else if (object.contains("plan")) {
      record.plans.push_back(object["plan"]);
    } else if (is_step(object)) {
      steps[object["step"].get<int64_t>()] = object;
    } else {
      return false;
    }
    return true;
  });
  if (bad_line > 0) throw UsageError(fmt::format("{}:{}: expected a line of aliquot train --metrics.", path, bad_line));
  for (auto& [step, object] : steps) record.steps.push_back(std::move(object));
  return record;
}

}  // namespace aliquot
