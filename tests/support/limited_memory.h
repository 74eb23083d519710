#pragma once
// Limits the memory of a process, to test allocation failures.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/system/error.h"

namespace aliquot {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCanLimitMemory = false;  // sanitizers reserve far more address space than any limit here
#else
inline constexpr bool kCanLimitMemory = true;
#endif

/// Limits the address space of the process to its current size plus `spare_bytes`. This cannot be undone, so call it in
/// a separate process. Returns false if it is not possible.
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

/// Runs `body` with limited memory and ends the process. The exit code is 2 if `body` throws UnavailableError, 9 if
/// memory cannot be limited, and 0 otherwise. The message of an exception goes to standard error.
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
