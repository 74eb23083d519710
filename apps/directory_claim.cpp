#include "apps/directory_claim.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

#include "kernels/error.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPatience{5000}, kBetweenLooks{50};

bool another_has_it(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

}  // namespace

DirectoryClaim::DirectoryClaim(const std::filesystem::path& directory)
    : descriptor_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;  // whoever writes there will say why
  for (const auto began = Clock::now(); another_has_it(descriptor_);) {
    if (Clock::now() - began > kPatience) {
      close(descriptor_);
      throw UnavailableError(fmt::format(
          "--checkpoint-dir {}: another run saves there; wait until it has ended, or give another directory.",
          directory.string()));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

DirectoryClaim::~DirectoryClaim() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace aliquot
