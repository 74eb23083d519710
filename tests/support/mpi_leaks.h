#pragma once
// For programs that run under mpirun, in builds with the address sanitizer.

/// Open MPI unloads its parts when it ends, so what they left unfreed has no name that a suppression could match. Leaks of
/// our own are looked for in the threads world.
extern "C" __attribute__((used)) inline const char* __asan_default_options() { return "detect_leaks=0"; }
