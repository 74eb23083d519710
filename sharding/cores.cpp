#include "sharding/cores.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <sched.h>
#include <thread>

#include "kernels/system/error.h"
#include "kernels/system/start_thread.h"

namespace aliquot {
namespace {

// Returns whether the file `list`, which is the cpulist of a NUMA node, contains all of `cores`.
bool contains_all_cores(const std::vector<bool>& cores, const std::filesystem::path& list) {
  std::string text;
  std::getline(std::ifstream(list), text);
  std::vector<bool> missing = cores;
  for (const int core : parse_core_list(text)) {
    if (static_cast<std::size_t>(core) < missing.size()) missing[core] = false;
  }
  return std::find(missing.begin(), missing.end(), true) == missing.end();
}

}  // namespace

std::vector<bool> allowed_cores() {
  constexpr std::size_t kMaxCores = std::size_t{1} << 20;
  // The kernel returns EINVAL if the set is smaller than the kernel's own set, whose size is unknown. Try larger sets.
  for (std::size_t count = CPU_SETSIZE; count <= kMaxCores; count *= 2) {
    const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(count), free_set);
    const std::size_t size_bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(size_bytes, set.get());
    if (sched_getaffinity(0, size_bytes, set.get()) == 0) {
      std::vector<bool> cores(count);
      for (std::size_t core = 0; core < count; ++core) cores[core] = CPU_ISSET_S(core, size_bytes, set.get());
      return cores;
    }
    if (errno != EINVAL) break;
  }
  throw FaultError(
      fmt::format("sched_getaffinity() failed, so the cores of this rank are unknown: {}", std::strerror(errno)));
}

int allowed_core_count() { return std::max(1, static_cast<int>(std::ranges::count(allowed_cores(), true))); }

int cpuset_core_count() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
  // The kernel limits the set that a thread requests to the cpuset of the process. A thread of its own requests all
  // cores, so that the binding of the calling thread does not change.
  start_thread("reading the cores of the process", [&count] {
    constexpr std::size_t kMaxCores = std::size_t{1} << 16;
    std::vector<cpu_set_t> all(kMaxCores / CPU_SETSIZE);
    std::memset(all.data(), 0xff, all.size() * sizeof(cpu_set_t));
    if (sched_setaffinity(0, all.size() * sizeof(cpu_set_t), all.data()) == 0) count = allowed_core_count();
  }).join();
  return count;
}

double outside_ranks_per_core(const CoreUse& use) {
  const int outside = use.launched_count - use.rank_count;
  if (outside <= 0) return 0;
  const double part = static_cast<double>(use.own_core_count) / std::max(1, use.cpuset_core_count);
  return part * use.launched_count <= 1 ? 0 : outside * std::min(1.0, part);
}

double share_of_cores(const std::vector<bool>& own, const std::vector<std::vector<bool>>& group, int cpuset_core_count,
                      int launched_count) {
  std::vector<int> rank_counts(own.size(), 0);
  for (const std::vector<bool>& cores : group) {
    for (std::size_t core = 0; core < std::min(cores.size(), own.size()); ++core) rank_counts[core] += cores[core];
  }
  const double outside = outside_ranks_per_core({.own_core_count = static_cast<int>(std::ranges::count(own, true)),
                                                 .cpuset_core_count = cpuset_core_count,
                                                 .rank_count = static_cast<int>(group.size()),
                                                 .launched_count = launched_count});
  double share = 0;
  for (std::size_t core = 0; core < own.size(); ++core) {
    if (own[core]) share += 1.0 / (rank_counts[core] + outside);
  }
  return share + 1e-6;  // prevents sums such as 1/3 + 1/3 + 1/3 from being rounded below an integer
}

int numa_node_of(const std::vector<bool>& cores, const std::string& folder) {
  constexpr std::string_view kNode = "node";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    int number = -1;
    const char* end = name.data() + name.size();
    if (name.compare(0, kNode.size(), kNode) != 0) continue;
    if (std::from_chars(name.data() + kNode.size(), end, number).ptr != end || number < 0) continue;
    if (contains_all_cores(cores, entry.path() / "cpulist")) return number;
  }
  return -1;
}

std::vector<int> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  const char *at = text.data(), *end = text.data() + text.size();
  while (at < end) {
    int first = -1;
    const auto [after, error] = std::from_chars(at, end, first);
    if (error != std::errc()) break;
    int last = first;
    at = after;
    if (at < end && *at == '-') at = std::from_chars(at + 1, end, last).ptr;
    for (int core = first; core <= last; ++core) cores.push_back(core);
    if (at < end && *at != ',') break;
    ++at;
  }
  return cores;
}

}  // namespace aliquot
