#pragma once
// Output formats of the benchmark programs. Names are shown as registered, without Google Benchmark's suffixes.

#include <benchmark/benchmark.h>
#include <string>
#include <vector>

namespace aliquot {

/// Prints one line on standard output when a benchmark ends: name, time, and each counter with its name.
class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  size_t name_width_ = 0;
};

/// Prints nothing. Used on all ranks but the first when a launcher started the program.
class SilentReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

/// Writes Google Benchmark's JSON, with the names that the table shows.
class PlainJsonReporter final : public benchmark::JSONReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override;
};

/// Formats a time with three digits and a suitable unit, for example "1.23 ms".
std::string readable_seconds(double seconds);

/// Formats a counter's value with three digits, and with the suffix k, M, G or T for values of 1000 or more.
std::string readable_value(double value);

}  // namespace aliquot
