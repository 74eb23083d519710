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
constexpr std::chrono::milliseconds kPatience{5000}, kBetweenLooks{50};

bool another_has_it(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

}  // namespace

DirectoryClaim::DirectoryClaim(const std::filesystem::path& directory) : directory_(directory) { claim(); }

void DirectoryClaim::claim() {
  descriptor_ = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) return;  // whoever writes there will say why
  for (const auto began = Clock::now(); another_has_it(descriptor_);) {
    if (Clock::now() - began > kPatience) {
      close(std::exchange(descriptor_, -1));
      throw UnavailableError(fmt::format(
          "--checkpoint-dir {}: another run saves there; wait until it has ended, or give another directory.",
          directory_.string()));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

bool DirectoryClaim::holds_current_directory() const {
  using Status = struct stat;
  Status held{}, there{};
  return descriptor_ >= 0 && fstat(descriptor_, &held) == 0 && stat(directory_.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

void DirectoryClaim::renew() {
  if (holds_current_directory()) return;
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
  std::error_code failure;  // whoever writes there will say why
  std::filesystem::create_directories(directory_, failure);
  claim();
}

DirectoryClaim::~DirectoryClaim() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace aliquot
