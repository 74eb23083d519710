#include "apps/options/pipeline_order.h"

#include <fmt/format.h>
#include <fstream>
#include <memory>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

PassOrder read_order(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), kMaxFileBytes + 1);
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || text.empty() || text.size() > kMaxFileBytes)
    throw UsageError(
        fmt::format("{}: the file cannot be read, is empty, or is larger than {} bytes.", path, kMaxFileBytes));
  try {
    PassOrder order = parse_pass_order(text);
    if (order.empty()) throw UsageError("the file has no action such as 0F0");
    return order;
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
