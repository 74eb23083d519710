// aliquot report: writes an HTML page about one or more runs.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <utility>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/models/hugging_face/values.h"
#include "apps/options/arguments.h"
#include "apps/report/csv.h"
#include "apps/report/page.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::string sweep, out = "report.html";
};

OptionTable report_option_table(ReportOptions& o) {
  OptionTable t;
  t.text("sweep", "DIR", o.sweep, "Also show the results of aliquot sweep in DIR: memory by model size.");
  t.text("out", "FILE.html", o.out, "The page to write.");
  return t;
}

std::string whole_file(const fs::path& path, const std::string& what_to_do) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.eof() && !file)
    throw UsageError(fmt::format("{}: the file cannot be read: {}.", path.string(), what_to_do));
  return text;
}

/// The names of the files without directory and extension, or their paths if two have the same name.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> stems;
  for (const std::string& path : paths) stems.push_back(fs::path(path).stem().string());
  std::vector<std::string> names;
  for (size_t i = 0; i < paths.size(); ++i)
    names.push_back(std::ranges::count(stems, stems[i]) > 1 ? paths[i] : stems[i]);
  return names;
}

/// The runs and plans that the metrics files contain.
struct Records {
  std::vector<ReportRun> runs;
  std::vector<ReportPlan> plans;
};

void add_plans(Records& records, const std::string& name, const std::vector<Json>& plans) {
  for (const Json& plan : plans) {
    const std::string suffix = plans.size() > 1 ? fmt::format(", ZeRO stage {}", plan.at("zero_stage").dump()) : "";
    records.plans.push_back({name + suffix, plan});
  }
}

void add_run(Records& records, const std::string& name, RunRecord record) {
  struct Line {
    std::string_view colour, dashes;
  };
  constexpr std::array<Line, 7> kLines = {{{"#0072B2", "none"},
                                           {"#D55E00", "7 3"},
                                           {"#009E73", "2 2.5"},
                                           {"#AA3377", "9 3 2 3"},
                                           {"#56B4E9", "none"},
                                           {"#E69F00", "7 3"},
                                           {"#333333", "2 2.5"}}};
  const Json& run = record.run;
  if (!run.is_object() || !run.contains("options") || !run.contains("plan") || !run.contains("world")) {
    throw UsageError(record.path +
                     ": its first line describes neither a run nor a plan: use a file of aliquot train --metrics or "
                     "aliquot plan --metrics.");
  }
  const Line& line = kLines[records.runs.size() % kLines.size()];
  records.runs.push_back({name, std::move(record), line.colour, line.dashes});
}

Records read_records(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = names_of(paths);
  Records records;
  for (size_t i = 0; i < paths.size(); ++i) {
    RunRecord record = read_run_record(paths[i]);
    add_plans(records, names[i], record.plans);
    if (record.plans.empty() || !record.run.is_null()) add_run(records, names[i], std::move(record));
  }
  return records;
}

SweepResults read_sweep(const std::string& directory) {
  if (directory.empty()) return {};
  const std::string what = "use the --out directory of aliquot sweep";
  SweepResults results{whole_file(fs::path(directory) / "memory.svg", what),
                       parse_csv(whole_file(fs::path(directory) / "sweep.csv", what))};
  results.picture.erase(0, std::min(results.picture.find("<svg"), results.picture.size()));
  if (results.table.empty() || results.picture.empty())
    throw UsageError(fmt::format("--sweep {}: the directory has no results of a sweep: {}.", directory, what));
  return results;
}

/// Reports missing or malformed fields of a record as UsageError.
std::string page_of(const std::vector<std::string>& paths, const SweepResults& sweep) try {
  const Records records = read_records(paths);
  return report_page(records.runs, sweep, records.plans);
} catch (const Json::exception& error) {
  throw UsageError(
      fmt::format("a metrics file has a missing or malformed field: {}: use files of aliquot train --metrics or "
                  "aliquot plan --metrics.",
                  json_error_text(error.what())));
}

}  // namespace

CommandHelp report_help() {
  ReportOptions options;
  return {.name = "report",
          .summary = "make an HTML page about one or several runs",
          .usage = "FILE.jsonl [OTHER.jsonl ...] [--sweep DIR] --out FILE.html",
          .text =
              "Writes one HTML page that compares runs recorded by aliquot train --metrics: loss, gradient norm, "
              "learning rate, tokens/s, planned and measured memory, the operations of one step, and the options "
              "that differ. Draws the pipeline of a step, recorded by a run or simulated by aliquot plan "
              "--metrics. The page loads nothing from the network.",
          .options = help_options(report_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 3}};
}

int run_report(const Arguments& arguments) {
  ReportOptions options;
  const OptionTable table = report_option_table(options);
  Arguments flags = arguments;
  const std::vector<std::string> paths = extract_positional(flags, table);
  parse_arguments(table, flags);
  if (paths.empty() && options.sweep.empty())
    throw UsageError("report needs a file of aliquot train --metrics or aliquot plan --metrics, or --sweep DIR.");
  const std::string page = page_of(paths, read_sweep(options.sweep));
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (fs::equivalent(path, options.out, ignored))
      throw UsageError("--out " + options.out + " is one of the input files: name another file.");
  }
  std::ofstream file(options.out);
  file << page;
  if (!file.flush()) {
    throw UsageError(fmt::format("--out {}: the file cannot be written ({}): name another file.", options.out,
                                 std::strerror(errno)));
  }
  write_stdout("{}\n", options.out);
  return 0;
}

}  // namespace aliquot
