#include "kernels/system/fault_point.h"

#include <chrono>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The random faults of this process.
struct Injection {
  std::mutex mutex;
  RandomFaults faults;
  std::map<std::pair<int, std::string>, uint64_t> passes;
  std::vector<std::string> occurred;
};

Injection& injection() {
  static Injection one;
  return one;
}

/// The finalizer of splitmix64: every bit of the result depends on every bit of `value`.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

uint64_t draw(uint64_t seed, int rank, std::string_view name, uint64_t pass) {
  uint64_t value = mix(seed + 0x9E3779B97F4A7C15u);
  for (const char c : name) value = mix(value ^ static_cast<unsigned char>(c));
  return mix(mix(value ^ static_cast<uint64_t>(rank)) ^ pass);
}

}  // namespace

std::vector<std::string> set_random_faults(const RandomFaults& faults) {
  Injection& all = injection();
  const std::lock_guard lock(all.mutex);
  all.faults = faults;
  all.passes.clear();
  fault_points_detail::enabled.store(faults.probability > 0, std::memory_order_relaxed);
  return std::exchange(all.occurred, {});
}

namespace fault_points_detail {

std::atomic<bool> enabled{false};

void pass(int rank, std::string_view name) {
  constexpr uint64_t kKinds = 4;
  bool throws = false;
  std::string what;
  {
    Injection& all = injection();
    const std::lock_guard lock(all.mutex);
    const uint64_t pass = ++all.passes[{rank, std::string(name)}];
    const uint64_t drawn = draw(all.faults.seed, rank, name, pass);
    if (static_cast<double>(drawn >> 11) * 0x1p-53 >= all.faults.probability) return;
    throws = mix(drawn) % kKinds != 0;
    what = fmt::format("{} at {}, pass {} of rank {}", throws ? "throw" : "delay", name, pass, rank);
    all.occurred.push_back(what);
  }
  if (throws) throw FaultError("injected fault: " + what);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

}  // namespace fault_points_detail
}  // namespace aliquot
