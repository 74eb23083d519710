#include "apps/options/pipeline_order.h"

#include <fmt/format.h>

#include "apps/options/settings_file.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

PassOrder read_order(const std::string& path) {
  const std::string text = read_settings_file("", path);
  try {
    PassOrder order = parse_pass_order(text);
    if (order.empty())
      throw UsageError("the file has no actions: expected a line of actions such as 0F0 for each pipeline stage.");
    return order;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

void add_pipeline_order_from(OptionTable& table, std::string& path, PassOrder& order) {
  const auto set = [&order, &path](std::string_view text) {
    order = read_order(std::string(text));
    path = text;
  };
  table.add({"pipeline-order-from", "FILE",
             "Run the passes in this order instead of --pipeline-schedule: one line of actions such as 0F0,0B0 per "
             "pipeline stage.",
             false, set, [&path] { return path.empty() ? OptionValue() : OptionValue(path); }});
}

}  // namespace aliquot
