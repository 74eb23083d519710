#include "apps/metrics/metrics_lines.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace aliquot {
namespace {

/// Whether `line` is a {"run": ...} line, with which a run begins. If that run was killed, the line may be truncated
/// too.
bool starts_with_run(const Json& object, std::string_view line) {
  constexpr std::string_view kBegin = "{\"run\"";
  if (object.is_object()) return object.contains("run");
  return line.starts_with(kBegin) || kBegin.starts_with(line);
}

}  // namespace

int read_metrics_lines(std::istream& file, const std::function<bool(const Json&)>& accept) {
  // `number` is the number of the current line. `truncated` is the number of a truncated line that must be followed by
  // a {"run": ...} line or by the end of the file; 0 if there is none.
  int number = 0, truncated = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = Json::parse(line, nullptr, false);
    if (truncated != 0 && !starts_with_run(object, line)) return truncated;
    if (object.is_discarded() && line.starts_with('{')) {
      if (truncated == 0) truncated = number;
      continue;
    }
    truncated = 0;
    if (!object.is_object() || !accept(object)) return number;
  }
  return truncated == 1 ? 1 : 0;  // a file with only a truncated line is not a metrics file
}

}  // namespace aliquot
