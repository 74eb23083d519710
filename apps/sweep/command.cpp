// aliquot sweep: measures memory per rank against model size, with one training run per point.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/models/parameters.h"
#include "apps/sweep/memory_picture.h"
#include "apps/sweep/sweep_options.h"
#include "apps/train/reporting/progress.h"
#include "apps/train/stop_request.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

constexpr double kPollSeconds = 0.2;

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw FaultError(path.string() + ": the file could not be written (is the disk full?).");
}

class Sweep {
 public:
  explicit Sweep(SweepOptions options);
  /// Runs all cases. Returns the exit code of the command.
  int run();

 private:
  SweepRow run_one(const SweepCase& one, size_t number);
  void wait_for(ChildProcess& child, const SweepCase& one, size_t number);
  void show_progress(const SweepCase& one, size_t number, double seconds);
  void clear_progress_line();
  std::string common_settings_text() const;
  int finish();

  SweepOptions options_;
  std::vector<SweepCase> cases_;
  std::vector<SweepRow> rows_;
  std::string program_;
  fs::path runs_;
  std::ofstream table_;
  bool on_terminal_;
  bool line_is_open_ = false;
};

Sweep::Sweep(SweepOptions options)
    : options_(std::move(options)),
      cases_(cases_of(options_)),
      program_(fs::read_symlink("/proc/self/exe").string()),
      runs_(fs::path(options_.out) / "runs"),
      on_terminal_(isatty(STDOUT_FILENO) != 0) {
  std::error_code failure;
  fs::create_directories(runs_, failure);
  if (failure)
    throw UsageError(fmt::format("--out {}: the directory cannot be created: {}.", options_.out, failure.message()));
  table_.open(fs::path(options_.out) / "sweep.csv");
  table_ << csv_header() << '\n' << std::flush;
  if (!table_)
    throw UsageError("--out " + options_.out + ": sweep.csv cannot be written there: choose another directory.");
}

int Sweep::run() {
  for (size_t i = 0; i < cases_.size() && !stop_requested(); ++i) {
    const SweepRow row = run_one(cases_[i], i);
    if (stop_requested() && !row.ok()) break;  // the stop request ended this run, so the run gets no row
    rows_.push_back(row);
    table_ << csv_line(row) << '\n' << std::flush;
    if (!table_) throw FaultError(options_.out + "/sweep.csv: the file could not be written (is the disk full?).");
    clear_progress_line();
    write_stdout("{:>{}}/{}  {}\n", i + 1, std::to_string(cases_.size()).size(), cases_.size(), text_line(row));
    std::fflush(stdout);
  }
  return finish();
}

SweepRow Sweep::run_one(const SweepCase& one, size_t number) {
  const fs::path metrics = runs_ / (one.name() + ".jsonl"), output = runs_ / (one.name() + ".txt");
  fs::remove(metrics);  // an earlier sweep may have written the file
  ExitStatus exit_status;
  {
    ChildProcess child(command_of(options_, one, program_, metrics.string()), output.string());
    wait_for(child, one, number);
    exit_status = child.exit_status();
  }
  RunRecord record;
  if (fs::exists(metrics)) record = read_run_record(metrics.string());
  SweepRow row = row_of(one, exit_status, record, text_of_file(output));
  ShapeOptions shape = options_.common;
  set_model(shape, one.model);
  row.parameters = parameter_count(parameters_of(model_shape(shape)));
  if (options_.device_memory) row.limit_bytes = options_.device_memory;
  return row;
}

void Sweep::wait_for(ChildProcess& child, const SweepCase& one, size_t number) {
  bool stop_sent = false;
  double seconds = 0;
  for (show_progress(one, number, 0); !child.wait_for_exit(kPollSeconds); show_progress(one, number, seconds)) {
    seconds += kPollSeconds;
    if (!stop_requested() || stop_sent) continue;
    child.send(SIGTERM);
    stop_sent = true;
  }
}

void Sweep::show_progress(const SweepCase& one, size_t number, double seconds) {
  if (!on_terminal_) return;
  constexpr size_t kWidth = 20;
  const size_t full = kWidth * number / cases_.size();
  write_stdout("\r[{}{}] {}/{}  {}  {}\x1b[K", std::string(full, '#'), std::string(kWidth - full, '.'), number,
               cases_.size(), one.name(), duration_text(seconds));
  std::fflush(stdout);
  line_is_open_ = true;
}

void Sweep::clear_progress_line() {
  if (line_is_open_) write_stdout("\r\x1b[K");
  line_is_open_ = false;
}

/// Returns the text under the chart's title: the settings that all runs share, from the first run that has a plan.
std::string Sweep::common_settings_text() const {
  for (const SweepRow& row : rows_) {
    if (!row.planned_peak_bytes) continue;
    const Json run = read_run_record((runs_ / (row.run.name() + ".jsonl")).string()).run;
    const Json& options = run["options"];
    const auto value_of = [&options](const char* name) { return text_of(options.value(name, Json())); };
    const bool same_sequence = options_.common.sequence.has_value() || options_.models.size() == 1;
    const size_t equal = static_cast<size_t>(std::ranges::count_if(rows_, &SweepRow::plan_matches));
    const size_t ran = static_cast<size_t>(std::ranges::count_if(rows_, &SweepRow::ok));
    return fmt::format("{}, {}, micro-batch {} x {}; {}, {}. Planned equals measured, to the byte, in {} of {} runs.",
                       value_of("optimizer"), value_of("precision"), value_of("micro-batch"),
                       same_sequence ? value_of("sequence") + " tokens" : "the model's context", row.device,
                       options_.launcher.empty() ? "ranks as threads" : "ranks as processes", equal, ran);
  }
  return {};
}

int Sweep::finish() {
  clear_progress_line();
  const fs::path picture = fs::path(options_.out) / "memory.svg";
  write_file(picture, memory_picture(rows_, common_settings_text()));
  const auto ran = std::ranges::count_if(rows_, &SweepRow::ok);
  const auto equal = std::ranges::count_if(rows_, &SweepRow::plan_matches);
  write_stdout(
      "{} of {} runs were measured; planned and measured memory are equal to the byte in {} of "
      "them.\n{}/sweep.csv\n{}\n",
      ran, cases_.size(), equal, options_.out, picture.string());
  if (rows_.size() < cases_.size()) {
    warn("stopped on request after {} of {} runs; the results so far are written.", rows_.size(), cases_.size());
    return exit_code_of_signal(stop_signal());
  }
  if (ran > 0) return 0;
  throw UnavailableError("no run of the sweep was measured; the first one ended with: " + rows_.front().reason);
}

}  // namespace

CommandHelp sweep_help() {
  SweepOptions options;
  return {.name = "sweep",
          .summary = "measure memory per rank against model size, as a table and a chart",
          .usage = "[--option value ...]",
          .text =
              "  aliquot sweep --models gpt2-nano,gpt2-124m --stages all --ranks 1,2 --out results\n\n"
              "Trains every combination of model, ZeRO stage and number of ranks for a few steps. Each run has its "
              "own process. Writes two files to the directory --out: the table sweep.csv has one row per run, and "
              "the chart memory.svg shows memory per rank against model size. A run that does not fit in memory "
              "also has a row. The metrics and the output of the runs are in --out/runs. Options of aliquot train "
              "apply to all runs.",
          .options = help_options(sweep_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 2, 3}};
}

int run_sweep(const Arguments& arguments) {
  SweepOptions options;
  const OptionTable table = sweep_option_table(options);
  refuse_excluded_options(table, arguments);
  parse_arguments(table, arguments);
  for (const std::string& model : options.models) {
    ShapeOptions shape = options.common;
    set_model(shape, model);
    model_shape(shape);  // throws before the first run if the options contradict each other
  }
  install_stop_handlers(StartedBy::kItself);
  return Sweep(options).run();
}

}  // namespace aliquot
