// scripts/coverage.sh preloads this library into tests (LD_PRELOAD). It logs each code location that throws, once per
// process, to the file in the environment variable ALIQUOT_THROW_LOG. A line has the test, the program or library, and
// the offset in it. Each line is written immediately, so that no line is lost if the process is killed.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <string_view>
#include <typeinfo>
#include <unistd.h>

namespace {

/// Returns the name of the test, which is part of the report's path in GTEST_OUTPUT.
std::string_view test_name() {
  const char* report = std::getenv("GTEST_OUTPUT");
  if (report == nullptr) return "-";
  std::string_view name = report;
  if (const size_t slash = name.rfind('/'); slash != name.npos) name.remove_prefix(slash + 1);
  return name.substr(0, name.rfind(".xml"));
}

bool is_new(std::uintptr_t address) {
  static std::atomic<std::uintptr_t> seen[1024];
  for (std::atomic<std::uintptr_t>& slot : seen) {
    std::uintptr_t held = slot.load();
    if (held == 0 && slot.compare_exchange_strong(held, address)) return true;
    if (held == address) return false;
  }
  return true;  // duplicate lines are harmless
}

void log_throw(void* address) {
  const char* path = std::getenv("ALIQUOT_THROW_LOG");
  Dl_info where;
  if (path == nullptr || !is_new(reinterpret_cast<std::uintptr_t>(address)) || dladdr(address, &where) == 0) return;
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  program[length > 0 ? length : 0] = '\0';
  // dladdr() returns the program's name as it was started, which may be a relative path. /proc/self/exe is absolute.
  const bool is_program =
      where.dli_fname[0] != '/' || std::string_view(where.dli_fname).find(".so") == std::string_view::npos;
  const std::string_view test = test_name();
  char line[8192];
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(where.dli_fbase);
  const int written = std::snprintf(line, sizeof line, "%.*s %s %#lx\n", static_cast<int>(test.size()), test.data(),
                                    is_program ? program : where.dli_fname, static_cast<unsigned long>(offset));
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (write(file, line, static_cast<size_t>(written)) < 0) std::perror("ALIQUOT_THROW_LOG");
  close(file);
}

}  // namespace

// In AddressSanitizer builds, this library is loaded before the sanitizer. This option makes the sanitizer accept that.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options() { return "verify_asan_link_order=0"; }

extern "C" [[noreturn, gnu::visibility("default")]] void __cxa_throw(void* exception, std::type_info* type,
                                                                     void (*destroy)(void*)) {
  using Throw = void (*)(void*, std::type_info*, void (*)(void*));
  static const auto real = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
  // The return address is the next instruction, which may belong to another line. The byte before is part of the call.
  log_throw(static_cast<char*>(__builtin_return_address(0)) - 1);
  real(exception, type, destroy);
  std::abort();
}
