#pragma once
// For programs that run under mpirun, in builds with AddressSanitizer.

/// Open MPI unloads its plugins at exit, so their leaks have no symbol that a suppression could match. The thread world
/// is checked for leaks instead. The sanitizer finds this function only with default visibility. verify_asan_link_order
/// is off because coverage builds preload throw_log.cpp before the sanitizer.
extern "C" __attribute__((used, visibility("default"))) inline const char* __asan_default_options() {
  return "detect_leaks=0:verify_asan_link_order=0";
}
