#pragma once
// A process that soon gets no more from the system.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/system/error.h"

namespace aliquot {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCanLimitMemory = false;  // a sanitizer's own tables want far more addresses than any program
#else
inline constexpr bool kCanLimitMemory = true;
#endif

/// Lets the process have `spare_bytes` of addresses more than it has now: room for a few threads' stacks, not for many.
/// For good, so call it in a process of its own. False when that is not possible.
inline bool limit_memory(int64_t spare_bytes) {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return false;
  long pages = 0;
  const bool read = std::fscanf(file, "%ld", &pages) == 1;
  std::fclose(file);
  const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + spare_bytes);
  const rlimit both{limit, limit};
  return read && setrlimit(RLIMIT_AS, &both) == 0;
}

/// Ends the process, after `body` in so little memory: with 2 and the sentence if it found something not to be had, as it should.
template <typename Body>
[[noreturn]] void exit_after_running_in_limited_memory(int64_t spare_bytes, const Body& body) {
  if (!limit_memory(spare_bytes)) std::exit(9);
  try {
    body();
  } catch (const UnavailableError& error) {
    std::fputs(error.what(), stderr);
    std::exit(2);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
  std::exit(0);
}

}  // namespace aliquot
