#include "apps/train/checkpoints/directory_claim.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kMaxWait{5000}, kPollInterval{50};

bool is_locked_by_another(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

}  // namespace

DirectoryClaim::DirectoryClaim(const std::filesystem::path& directory) : directory_(directory) { claim(); }

void DirectoryClaim::claim() {
  descriptor_ = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) return;  // the first write to the directory will report the error
  for (const auto began = Clock::now(); is_locked_by_another(descriptor_);) {
    if (Clock::now() - began > kMaxWait) {
      close(std::exchange(descriptor_, -1));
      throw UnavailableError(fmt::format(
          "--checkpoint-dir {}: another run is using the directory: wait until it has ended, or choose another "
          "directory.",
          directory_.string()));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

bool DirectoryClaim::holds_current_directory() const {
  using Status = struct stat;
  Status held{}, current{};
  return descriptor_ >= 0 && fstat(descriptor_, &held) == 0 && stat(directory_.c_str(), &current) == 0 &&
         held.st_dev == current.st_dev && held.st_ino == current.st_ino;
}

void DirectoryClaim::renew() {
  if (holds_current_directory()) return;
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
  std::error_code failure;  // ignored: the first write to the directory will report the error
  std::filesystem::create_directories(directory_, failure);
  claim();
}

DirectoryClaim::~DirectoryClaim() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace aliquot
