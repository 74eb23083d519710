// aliquot report: one page about one run or several.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/options/arguments.h"
#include "apps/report/csv.h"
#include "apps/report/page.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHelp =
    "aliquot report RUN.jsonl [OTHER.jsonl ...] [--sweep DIR] --out FILE.html\n\n"
    "One page about runs that aliquot train --metrics recorded, laid over one another: loss, norm, rate and tokens/s,\n"
    "memory planned beside measured, one step from the inside, and the options that differ. Everything is in the "
    "page:\n"
    "it opens without a network and prints.\n\n";

struct ReportOptions {
  std::string sweep, out = "report.html";
};

OptionTable report_option_table(ReportOptions& o) {
  OptionTable t;
  t.text("sweep", "DIR", o.sweep, "What aliquot sweep wrote there too: memory against model size.");
  t.text("out", "FILE.html", o.out, "Where the page goes.");
  return t;
}

std::string whole_file(const fs::path& path, const std::string& what_to_do) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.eof() && !file)
    throw UsageError(fmt::format("{}: the file cannot be read; {}.", path.string(), what_to_do));
  return text;
}

/// The files' names without what ends them; with their folders where two would be called the same.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> stems;
  for (const std::string& path : paths) stems.push_back(fs::path(path).stem().string());
  std::vector<std::string> names;
  for (size_t i = 0; i < paths.size(); ++i)
    names.push_back(std::ranges::count(stems, stems[i]) > 1 ? paths[i] : stems[i]);
  return names;
}

std::vector<ReportRun> read_runs(const std::vector<std::string>& paths) {
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
  const std::vector<std::string> names = names_of(paths);
  std::vector<ReportRun> runs;
  for (size_t i = 0; i < paths.size(); ++i) {
    const Line& line = kLines[i % kLines.size()];
    runs.push_back({names[i], read_run_record(paths[i]), line.colour, line.dashes});
    const Json& run = runs.back().record.run;
    const bool whole = run.is_object() && run.contains("options") && run.contains("plan") && run.contains("world");
    if (!whole)
      throw UsageError(paths[i] + ": its first line says of no run; give what aliquot train --metrics wrote.");
  }
  return runs;
}

SweepResults read_sweep(const std::string& directory) {
  if (directory.empty()) return {};
  const std::string what = "give the directory that aliquot sweep --out named";
  SweepResults results{whole_file(fs::path(directory) / "memory.svg", what),
                       parse_csv(whole_file(fs::path(directory) / "sweep.csv", what))};
  results.picture.erase(0, std::min(results.picture.find("<svg"), results.picture.size()));
  if (results.table.empty() || results.picture.empty())
    throw UsageError(fmt::format("--sweep {}: there is no sweep in it; {}.", directory, what));
  return results;
}

/// A record that lacks what a run always writes, or has it as something else.
std::string page_of(const std::vector<ReportRun>& runs, const SweepResults& sweep) try {
  return report_page(runs, sweep);
} catch (const Json::exception& error) {
  throw UsageError(fmt::format("a record is not as aliquot train --metrics writes it: {}.", error.what()));
}

}  // namespace

int run_report(const Arguments& arguments) {
  ReportOptions options;
  const OptionTable table = report_option_table(options);
  if (wants_help(arguments)) {
    write_stdout("{}{}", kHelp, option_help(table));
    return 0;
  }
  Arguments flags = arguments;
  const std::vector<std::string> paths = extract_positional(flags, table);
  parse_arguments(table, flags);
  if (paths.empty() && options.sweep.empty())
    throw UsageError("report wants the files that aliquot train --metrics wrote, or --sweep DIR.");
  const std::string page = page_of(read_runs(paths), read_sweep(options.sweep));
  for (const std::string& path : paths) {
    std::error_code unseen;
    if (fs::equivalent(path, options.out, unseen))
      throw UsageError("--out " + options.out + " is a record that the page is made of: give another.");
  }
  std::ofstream file(options.out);
  file << page;
  if (!file.flush()) throw UsageError("--out " + options.out + ": the file cannot be written; give another.");
  write_stdout("{}\n", options.out);
  return 0;
}

}  // namespace aliquot
