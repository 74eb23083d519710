#include "apps/metrics/run_record.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <string_view>

#include "apps/metrics/metrics_lines.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kExpected = "expected a file of aliquot train --metrics or aliquot plan --metrics";

bool is_step(const Json& object) { return object.contains("step") && object["step"].is_number_integer(); }

}  // namespace

RunRecord read_run_record(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw UsageError(fmt::format("{}: the file cannot be read ({}): {}.", path, std::strerror(errno), kExpected));
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
    } else if (object.contains("failure")) {
      return true;  // of a run that ended; a resumed run continues the file
    } else if (object.contains("plan")) {
      record.plans.push_back(object["plan"]);
    } else if (is_step(object)) {
      steps[object["step"].get<int64_t>()] = object;
    } else {
      return false;
    }
    return true;
  });
  if (bad_line > 0) throw UsageError(fmt::format("{}:{}: this line is not a record: {}.", path, bad_line, kExpected));
  for (auto& [step, object] : steps) record.steps.push_back(std::move(object));
  return record;
}

}  // namespace aliquot
