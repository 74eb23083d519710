#pragma once
// How a benchmark's figures are shown: a line each, names as they were registered, every counter with its name.

#include <benchmark/benchmark.h>
#include <string>
#include <vector>

namespace aliquot {

/// A line a benchmark on standard output, as each one ends.
class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  size_t name_width_ = 0;
};

/// Prints nothing: for the ranks of a launched job other than the first.
class SilentReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

/// Google Benchmark's JSON, under the names that the table shows.
class PlainJsonReporter final : public benchmark::JSONReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override;
};

/// 1.23 with the unit of time that suits it, "1.23 ms".
std::string readable_seconds(double seconds);

/// A counter's value in few digits, with k, M, G, T from a thousand on.
std::string readable_value(double value);

}  // namespace aliquot
