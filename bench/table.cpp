#include "bench/table.h"

#include <array>
#include <cmath>
#include <fmt/core.h>

namespace aliquot {
namespace {

using Run = benchmark::BenchmarkReporter::Run;

// Removes the suffixes that Google Benchmark appends ("/manual_time", "/iterations:5"), so that names stay stable.
Run under_plain_name(Run run) {
  run.run_name.min_time.clear();
  run.run_name.iterations.clear();
  run.run_name.repetitions.clear();
  run.run_name.time_type.clear();
  return run;
}

// Returns the reason why a run has no results, or an empty string if it has results. Google Benchmark 1.8 renamed the
// field that tells whether a run failed.
template <typename AnyRun>
std::string error_text(const AnyRun& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? run.error_message : std::string();
  } else {
    return run.skipped ? run.skip_message : std::string();
  }
}

std::string time_of(const Run& run) {
  if (run.run_type == Run::RT_Aggregate && run.aggregate_unit == benchmark::kPercentage) {
    return fmt::format("{:.1f} %", 100 * run.real_accumulated_time);
  }
  return readable_seconds(run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit));
}

std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  return fmt::format("{:.{}f}", value, magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2);
}

}  // namespace

std::string readable_seconds(double seconds) {
  if (seconds >= 1) return three_digits(seconds) + " s";
  if (seconds >= 1e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds >= 1e-6) return three_digits(seconds * 1e6) + " us";
  return three_digits(seconds * 1e9) + " ns";
}

std::string readable_value(double value) {
  constexpr std::array kUnits = {"", "k", "M", "G", "T"};
  const double magnitude = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (magnitude > 0 && magnitude < 0.1) return fmt::format("{:.3g}", value);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return three_digits(value) + kUnits[unit];
}

bool TableReporter::ReportContext(const Context& context) {
  name_width_ = context.name_field_width;
  fmt::print("{:<{}}  {:>9}  figures\n", "name", name_width_, "time");
  return true;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& measured : runs) {
    const Run run = under_plain_name(measured);
    fmt::print("{:<{}}", run.benchmark_name(), name_width_);
    if (const std::string reason = error_text(run); !reason.empty()) {
      fmt::print("  not measured: {}\n", reason);
      continue;
    }
    fmt::print("  {:>9}", time_of(run));
    for (const auto& [name, counter] : run.counters) fmt::print("  {} {}", name, readable_value(counter.value));
    fmt::print("\n");
  }
  std::fflush(stdout);
}

void PlainJsonReporter::ReportRuns(const std::vector<Run>& runs) {
  std::vector<Run> plain;
  plain.reserve(runs.size());
  for (const Run& run : runs) plain.push_back(under_plain_name(run));
  JSONReporter::ReportRuns(plain);
}

}  // namespace aliquot
