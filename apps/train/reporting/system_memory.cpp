#include "apps/train/reporting/system_memory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>

namespace aliquot {
namespace {

/// Parses the lines "NAME:  NUMBER kB" of a file into bytes by name. Skips other lines.
std::map<std::string, int64_t> kibibyte_lines(const char* path) {
  std::ifstream file(path);
  std::map<std::string, int64_t> lines;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.ends_with(" kB")) continue;
    lines[line.substr(0, colon)] = std::strtoll(line.c_str() + colon + 1, nullptr, 10) * 1024;
  }
  return lines;
}

}  // namespace

int64_t process_pss_bytes() { return kibibyte_lines("/proc/self/smaps_rollup")["Pss"]; }

std::string_view name(RunPhase phase) {
  constexpr std::array<std::string_view, kRunPhaseCount> kNames = {
      "starting",         "making initial values", "loading", "training", "evaluating", "saving",
      "comparing copies", "computing the digest"};
  return kNames[static_cast<std::size_t>(phase)];
}

RunPhase SystemPeak::enter(RunPhase phase) {
  sample();
  return std::exchange(now_, phase);
}

int64_t SystemPeak::bytes() {
  sample();
  return peak_bytes_;
}

void SystemPeak::sample() {
  auto status = kibibyte_lines("/proc/self/status");
  const int64_t resident = status["VmHWM"];
  if (resident <= highest_resident_bytes_) return;
  highest_resident_bytes_ = resident;
  int64_t shared_by_others = 0;
  if (shares_pages_ && status["RssShmem"] > 0) {
    auto share = kibibyte_lines("/proc/self/smaps_rollup");
    if (share.contains("Pss_Shmem")) shared_by_others = status["RssShmem"] - share["Pss_Shmem"];
  }
  if (start_bytes_ < 0) start_bytes_ = resident - shared_by_others;
  if (resident - shared_by_others <= peak_bytes_) return;
  peak_bytes_ = resident - shared_by_others;
  peak_phase_ = now_;
  by_phase_[static_cast<std::size_t>(now_)] = peak_bytes_;
}

}  // namespace aliquot
