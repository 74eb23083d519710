// The libFuzzer entry points of one fuzz target. CMake defines ALIQUOT_FUZZ_TARGET as its name. LLVMFuzzerInitialize()
// writes the target's seeds to the directory in the environment variable ALIQUOT_FUZZ_SEEDS, if it is set.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/fuzz_target.h"

namespace {

const aliquot::test::FuzzTarget& target() {
  for (const auto& each : aliquot::test::fuzz_targets()) {
    if (each.name == ALIQUOT_FUZZ_TARGET) return each;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("ALIQUOT_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : target().seeds()) {
    std::ofstream(std::filesystem::path(folder) / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
  }
  std::ofstream words(std::filesystem::path(folder).string() + ".words");
  for (const std::string_view word : target().words) {
    words << '"';
    for (const char c : word) words << (c == '"' || c == '\\' ? "\\" : "") << c;
    words << "\"\n";
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  target().run({reinterpret_cast<const char*>(data), count});
  return 0;
}
