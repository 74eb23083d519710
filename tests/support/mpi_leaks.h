#pragma once
// Options of AddressSanitizer for programs that run under mpirun.

/// detect_leaks is off, because Open MPI unloads its plugins at exit, and suppressions cannot match leaks in unloaded
/// code. Tests with thread ranks detect leaks instead. verify_asan_link_order is off, because coverage builds preload
/// throw_log.cpp before the sanitizer. The sanitizer finds this function only with default visibility.
extern "C" __attribute__((used, visibility("default"))) inline const char* __asan_default_options() {
  return "detect_leaks=0:verify_asan_link_order=0";
}
