#include "apps/error_notice.h"

#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>

namespace aliquot {
namespace {

/// Returns the path of the notice of an error: a file in the directory of the job on this node. mpirun creates and
/// removes the directory, and each rank has a directory of its own in it. Returns "" without such a directory.
std::string notice_path(std::string_view sentence) {
  const char* own = std::getenv("OMPI_FILE_LOCATION");
  if (own == nullptr || own[0] != '/') return {};
  const std::string directory = own;
  return fmt::format("{}/aliquot-error-{:016x}", directory.substr(0, directory.find_last_of('/')),
                     std::hash<std::string_view>()(sentence));
}

}  // namespace

void note_reported_error(std::string_view sentence) noexcept try {
  const std::string path = notice_path(sentence);
  if (path.empty()) return;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
} catch (...) {  // out of memory: the other ranks wait for their limit
}

bool first_rank_reports_error(std::string_view sentence, std::chrono::milliseconds limit) noexcept try {
  constexpr std::chrono::milliseconds kPollPeriod{20};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::string path = notice_path(sentence);
  while (path.empty() || access(path.c_str(), F_OK) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollPeriod);
  }
  return true;
} catch (...) {  // out of memory
  return false;
}

}  // namespace aliquot
