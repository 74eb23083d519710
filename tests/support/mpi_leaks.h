#pragma once
// For programs that run under mpirun, in builds with the address sanitizer.

/// Open MPI unloads its parts when it ends, so what they left unfreed has no name that a suppression could match. Leaks of
/// our own are looked for in the threads world. The sanitizer finds it only where it is visible to all; and in a coverage
/// build the log of throws is loaded before the sanitizer.
extern "C" __attribute__((used, visibility("default"))) inline const char* __asan_default_options() {
  return "detect_leaks=0:verify_asan_link_order=0";
}
