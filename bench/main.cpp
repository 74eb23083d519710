// main() of every benchmark program. Like Google Benchmark's main(), but prints the project's table. Accepts Google
// Benchmark's flags (--benchmark_filter, ...).

#include <benchmark/benchmark.h>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/table.h"

namespace {

bool is_first_rank() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr || std::strcmp(rank, "0") == 0;
}

bool writes_file(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--benchmark_out=", 16) == 0) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const bool with_file = writes_file(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::unique_ptr<benchmark::BenchmarkReporter> shown;
  if (is_first_rank()) {
    shown = std::make_unique<aliquot::TableReporter>();
  } else {
    shown = std::make_unique<aliquot::SilentReporter>();
  }
  aliquot::PlainJsonReporter written;
  benchmark::RunSpecifiedBenchmarks(shown.get(), with_file ? &written : nullptr);
  benchmark::Shutdown();
  return 0;
}
