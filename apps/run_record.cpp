#include "apps/run_record.h"

#include <fmt/format.h>
#include <map>

#include "kernels/error.h"

namespace aliquot {
namespace {

bool is_step(const Json& object) { return object.contains("step") && object["step"].is_number_integer(); }

}  // namespace

RunRecord read_run_record(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError(path + ": the file cannot be read; give one that aliquot train --metrics wrote.");
  RunRecord record{.path = path, .run = {}, .steps = {}, .done = {}, .stragglers = {}};
  std::map<int64_t, Json> steps;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    const bool whole = !file.eof();
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = Json::parse(line, nullptr, false);
    const bool known = object.is_object() && (object.contains("run") || object.contains("done") ||
                                              object.contains("stragglers") || is_step(object));
    if (!known && !whole && number > 1) break;
    if (!known) throw UsageError(fmt::format("{}:{}: this is no line of aliquot train --metrics.", path, number));
    if (object.contains("run")) {
      record.run = object["run"];
      record.done = nullptr;  // it goes on
    } else if (object.contains("done")) {
      record.done = object["done"];
    } else if (object.contains("stragglers")) {
      record.stragglers = object["stragglers"];
    } else {
      steps[object["step"].get<int64_t>()] = object;
    }
  }
  for (auto& [step, object] : steps) record.steps.push_back(std::move(object));
  return record;
}

}  // namespace aliquot
