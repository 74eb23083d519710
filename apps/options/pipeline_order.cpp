#include "apps/options/pipeline_order.h"

#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <sstream>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::streamoff kMaxFileBytes = 64 << 20;

PassOrder read_order(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.tellp() > kMaxFileBytes)
    throw UsageError(fmt::format("{} cannot be read, or is larger than {} bytes.", path, kMaxFileBytes));
  try {
    return parse_pass_order(text.str());
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

void add_pipeline_order_from(OptionTable& table, PassOrder& order) {
  const auto path = std::make_shared<std::string>();
  const auto set = [&order, path](std::string_view text) {
    order = read_order(std::string(text));
    *path = text;
  };
  table.add({"pipeline-order-from", "FILE",
             "Run the passes in this order instead of --pipeline-schedule: one line of actions such as 0F0,0B0 per "
             "pipeline stage.",
             false, set, [path] { return path->empty() ? OptionValue() : OptionValue(*path); }});
}

}  // namespace aliquot
