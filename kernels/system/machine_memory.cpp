#include "kernels/system/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace aliquot {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// Returns the value, in bytes, of the line of /proc/meminfo that begins with `field`. An example of a line is
// "MemTotal:   24000000 kB".
int64_t meminfo_bytes(std::string_view field, int64_t fallback_bytes) {
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == field) return std::stoll(rest) << 10;
  }
  return fallback_bytes;
}

struct ControlGroupMemory {
  int64_t limit_bytes = kUnknown, available_bytes = kUnknown;
};

// Returns the anonymous memory of a control group. Only this memory counts as used, because the kernel can drop pages
// of files.
int64_t anonymous_bytes(const std::filesystem::path& group) {
  std::ifstream file(group / "memory.stat");
  std::string name;
  for (int64_t bytes = 0; file >> name >> bytes;) {
    if (name == "anon") return bytes;
  }
  return 0;
}

// Returns the smallest limit, and the smallest available memory, of this process's control group (version 2) and its
// ancestors. A group whose limit is "max" has no limit.
ControlGroupMemory control_group_memory() {
  ControlGroupMemory tightest;
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (!line.starts_with("0::/")) continue;
    std::filesystem::path group = "/sys/fs/cgroup" + line.substr(3);
    for (; group.has_relative_path() && group != "/sys/fs"; group = group.parent_path()) {
      int64_t limit = 0;
      if (!(std::ifstream(group / "memory.max") >> limit)) continue;
      tightest.limit_bytes = std::min(tightest.limit_bytes, limit);
      tightest.available_bytes =
          std::min(tightest.available_bytes, std::max<int64_t>(0, limit - anonymous_bytes(group)));
    }
  }
  return tightest;
}

}  // namespace

int64_t machine_memory_bytes() {
  return std::min(meminfo_bytes("MemTotal:", kUnknown), control_group_memory().limit_bytes);
}

int64_t available_memory_bytes() {
  const int64_t available = meminfo_bytes("MemAvailable:", kUnknown);
  if (available == kUnknown) return available;
  return std::min(available + meminfo_bytes("SwapFree:", 0), control_group_memory().available_bytes);
}

}  // namespace aliquot
