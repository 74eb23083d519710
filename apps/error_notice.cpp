#include "apps/error_notice.h"

#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>

#include "sharding/launcher.h"

namespace aliquot {
namespace {

std::atomic<bool> passed_checks{false};

/// Returns the path of the file `name` in the directory of the job on this node. mpirun creates and removes the
/// directory, and each rank has a directory of its own in it. Returns "" without such a directory.
std::string job_file(const std::string& name) {
  const char* own = std::getenv("OMPI_FILE_LOCATION");
  if (own == nullptr || own[0] != '/') return {};
  const std::string directory = own;
  return fmt::format("{}/aliquot-{}", directory.substr(0, directory.find_last_of('/')), name);
}

/// The notice that the first rank reported `sentence`.
std::string error_notice(std::string_view sentence) {
  return job_file(fmt::format("error-{:016x}", std::hash<std::string_view>()(sentence)));
}

/// The notice that the first rank passed its checks.
std::string passed_notice() { return job_file("checks-passed"); }

void create(const std::string& path) {
  if (path.empty()) return;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
}

bool exists(const std::string& path) { return !path.empty() && access(path.c_str(), F_OK) == 0; }

}  // namespace

void note_reported_error(std::string_view sentence) noexcept try { create(error_notice(sentence)); } catch (...) {
  // Out of memory. The other ranks wait for their limit.
}

void note_checks_passed() noexcept try {
  passed_checks.store(true);
  if (launched_rank() == 0) create(passed_notice());
} catch (...) {  // out of memory: as above
}

bool first_rank_reports_error(std::string_view sentence, std::chrono::milliseconds limit) noexcept try {
  constexpr std::chrono::milliseconds kPollPeriod{20};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::string reported = error_notice(sentence), passed = passed_notice();
  while (!exists(reported)) {
    const bool only_here = !passed_checks.load() && exists(passed);
    if (only_here || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollPeriod);
  }
  return true;
} catch (...) {  // out of memory
  return false;
}

}  // namespace aliquot
