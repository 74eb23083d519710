#include "apps/metrics/metrics_lines.h"

#include <string>
#include <string_view>

namespace aliquot {
namespace {

/// Whole, or cut off too: a run may be killed as it begins to write.
bool starts_with_run(const Json& object, std::string_view line) {
  constexpr std::string_view kBegin = "{\"run\"";
  if (object.is_object()) return object.contains("run");
  return line.starts_with(kBegin) || kBegin.starts_with(line);
}

}  // namespace

int read_metrics_lines(std::istream& file, const std::function<bool(const Json&)>& take) {
  int number = 0, cut = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = Json::parse(line, nullptr, false);
    if (cut != 0 && !starts_with_run(object, line)) return cut;
    if (object.is_discarded() && line.starts_with('{')) {
      if (cut == 0) cut = number;
      continue;
    }
    cut = 0;
    if (!object.is_object() || !take(object)) return number;
  }
  return cut == 1 ? 1 : 0;  // of such a file not one line is left
}

}  // namespace aliquot
