#include "apps/sweep/sweep_row.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <sstream>

#include "apps/train/reporting/memory_table.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::vector<Category> categories() {
  std::vector<Category> all;
  for (int i = 0; i < kCategoryCount; ++i) {
    if (static_cast<Category>(i) != Category::kArena) all.push_back(static_cast<Category>(i));
  }
  return all;
}

std::string status_of(const ExitStatus& exit_status, bool was_planned) {
  if (exit_status.signal != 0) return "killed";
  switch (static_cast<ExitCode>(exit_status.code)) {
    case ExitCode::kDone: return "ok";
    case ExitCode::kUsage: return "refused";
    case ExitCode::kUnavailable: return was_planned ? "does not fit" : "unavailable";
    case ExitCode::kFault: return "failed";
    case ExitCode::kNotFinite: return "not finite";
    case ExitCode::kCheckpoint: return "no checkpoint";
    case ExitCode::kStopped: return "stopped";
  }
  return exit_status.code == 128 + SIGKILL ? "killed" : fmt::format("exit {}", exit_status.code);
}

/// Returns the last message of aliquot, or the last line of text if there is no message.
std::string last_message(const std::string& printed) {
  constexpr std::string_view kPrefix = "aliquot: ";
  std::istringstream lines(printed);
  std::string message, last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kPrefix)) message = line.substr(kPrefix.size());
    if (line.find_first_not_of(" \t\r-") != std::string::npos) last = line;
  }
  return message.empty() ? last : message;
}

std::string reason_of(const ExitStatus& exit_status, const std::string& printed) {
  if (exit_status.signal == SIGKILL || exit_status.code == 128 + SIGKILL)
    return "killed by SIGKILL, which the system sends if memory runs out";
  if (exit_status.signal != 0)
    return fmt::format("ended by signal {} ({})", exit_status.signal, strsignal(exit_status.signal));
  const std::string message = last_message(printed);
  return message.empty() ? "no message was printed" : message;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns the median over all steps but the first, which is slower (cold caches, page faults). If there is only one
/// step, returns its value.
std::optional<double> median_of(const std::vector<Json>& steps, const char* field) {
  if (steps.empty()) return std::nullopt;
  std::vector<double> values;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) values.push_back(steps[i].value(field, 0.0));
  return median(std::move(values));
}

void read_measured(SweepRow& row, const Json& done) {
  BytesByCategory bytes{};
  for (const Category category : categories())
    bytes[static_cast<size_t>(category)] = done.at("measured").value(std::string(name(category)), int64_t{0});
  row.measured = bytes;
  row.measured_peak_bytes = done.value("measured_peak", int64_t{0});
  row.system_bytes = done.value("system_bytes", int64_t{0});
  row.plan_matches = done.at("planned") == done.at("measured") && done.at("planned_peak") == done.at("measured_peak");
}

std::string quoted_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c == '\n' ? ' ' : c);
  return text + "\"";
}

template <typename Value>
std::string cell(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "";
}

}  // namespace

SweepRow row_of(const SweepCase& run, const ExitStatus& exit_status, const RunRecord& record,
                const std::string& printed) {
  SweepRow row;
  row.run = run;
  const bool was_planned = record.run.is_object() && record.run.contains("plan");
  if (was_planned) {
    const std::string device = record.run.at("world").value("device", "");
    row.device = device.substr(0, device.find(','));  // "host", without the number of threads
    row.planned_peak_bytes = record.run.at("plan").at("memory").value("peak", int64_t{0});
    const Json limit = record.run.at("world").value("memory_per_rank", Json());
    if (limit.is_number_integer()) row.limit_bytes = limit.get<int64_t>();
  }
  row.status = status_of(exit_status, was_planned);
  if (row.ok() && record.done.is_null()) row.status = "no record";
  if (!row.ok()) row.reason = reason_of(exit_status, printed);
  if (!record.done.is_null()) read_measured(row, record.done);
  row.tokens_per_second = median_of(record.steps, "tokens_per_second");
  row.step_seconds = median_of(record.steps, "step_seconds");
  return row;
}

std::string csv_header() {
  std::string line =
      "model,parameters,zero_stage,ranks,device,status,planned_peak,measured_peak,system_bytes,tokens_per_second,"
      "step_seconds,reason";
  for (const Category category : categories()) line += fmt::format(",{}_bytes", name(category));
  return line;
}

std::string csv_line(const SweepRow& r) {
  std::string line =
      fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}", r.run.model, r.parameters, r.run.zero_stage, r.run.ranks,
                  quoted_cell(r.device), quoted_cell(r.status), cell(r.planned_peak_bytes), cell(r.measured_peak_bytes),
                  cell(r.system_bytes), cell(r.tokens_per_second), cell(r.step_seconds), quoted_cell(r.reason));
  for (const Category category : categories()) {
    line += ",";
    if (r.measured) line += std::to_string((*r.measured)[static_cast<size_t>(category)]);
  }
  return line;
}

std::string text_line(const SweepRow& r) {
  const std::string head = fmt::format("{:<10}  ZeRO stage {}  {:>2} rank{} ", r.run.model, r.run.zero_stage,
                                       r.run.ranks, r.run.ranks == 1 ? " " : "s");
  const std::string planned = r.planned_peak_bytes ? format_bytes(*r.planned_peak_bytes) : "?";
  if (!r.ok()) return fmt::format("{} {}: {}", head, r.status, r.reason);
  return fmt::format("{} planned {:>8}  measured {:>8}{}  system {:>8}  {:>7.0f} tokens/s", head, planned,
                     format_bytes(*r.measured_peak_bytes), r.plan_matches ? "" : " (differs)",
                     format_bytes(*r.system_bytes), r.tokens_per_second.value_or(0));
}

}  // namespace aliquot
