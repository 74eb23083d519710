#include "apps/sweep/sweep_options.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>

#include "apps/options/arguments.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

// Options of `aliquot train` that a sweep does not accept. The sweep sets some of them itself. Some are of no use in
// short runs that measure memory and speed. With others, all runs would write to the same files.
constexpr std::array<std::string_view, 20> kExcluded = {
    "zero-stage",   "ranks",   "model",  "steps",       "stop-after", "checkpoint-dir", "checkpoint-every",
    "keep",         "save",    "resume", "metrics",     "trace",      "quiet",          "progress",
    "digest-every", "dry-run", "config", "max-skipped", "log-every",  "metrics-every"};

void add_list(OptionTable& t, const char* name, std::vector<std::string>& value, std::vector<std::string> names,
              void (*check)(const std::string&, const std::vector<std::string>&), const char* meaning) {
  t.add({name, "LIST", meaning, false,
         [&value, names = std::move(names), check](std::string_view text) {
           std::vector<std::string> items = text == "all" ? names : parse_list(text);
           for (const std::string& item : items) check(item, names);
           value = std::move(items);
         },
         [&value]() -> OptionValue { return fmt::format("{}", fmt::join(value, ",")); }});
}

void check_model(const std::string& model, const std::vector<std::string>&) {
  ShapeOptions shape;
  set_model(shape, model);
}

void check_choice(const std::string& item, const std::vector<std::string>& names) { parse_choice(item, names); }

void add_ranks(OptionTable& t, SweepOptions& o) {
  t.add({"ranks", "LIST", "Comma-separated numbers of ranks.", false,
         [&o](std::string_view text) {
           o.ranks.clear();
           for (const std::string& item : parse_list(text)) o.ranks.push_back(parse_count(item, {1, 4096}));
         },
         [&o]() -> OptionValue { return fmt::format("{}", fmt::join(o.ranks, ",")); }});
}

/// Returns a copy of an option of `aliquot train`. Setting the copy checks the value and appends the option to
/// o.train_arguments.
Option train_arguments(const Option& option, SweepOptions& o) {
  Option copy = option;
  copy.set = [&o, set = option.set, flag = "--" + option.name](std::string_view text) {
    set(text);
    o.train_arguments.insert(o.train_arguments.end(), {flag + "=" + std::string(text)});
  };
  return copy;
}

}  // namespace

std::string SweepCase::name() const {
  std::string file_name = model;  // `model` may be a path, so its slashes are replaced
  std::ranges::replace(file_name, '/', '-');
  return fmt::format("{}-stage{}-ranks{}", file_name, zero_stage, ranks);
}

OptionTable sweep_option_table(SweepOptions& o) {
  OptionTable t;
  std::vector<std::string> models;
  for (const ModelPreset& preset : model_presets()) models.emplace_back(preset.name);
  t.heading("Runs");
  add_list(t, "models", o.models, models, check_model,
           "Comma-separated models, as for --model of aliquot train; 'all' means all presets.");
  add_list(t, "stages", o.stages, {"0", "1", "2", "3"}, check_choice, "Comma-separated ZeRO stages, or 'all'.");
  add_ranks(t, o);
  t.count("steps", o.steps, {1, 1 << 20}, "Steps of each run; reported rates are medians without the first step.");
  t.text("out", "DIR", o.out, "Directory for sweep.csv, memory.svg and the files of the runs.");
  t.text("launcher", "WORDS", o.launcher,
         "Command that starts ranks as processes, such as 'mpirun -n {ranks}'; default: threads of one process.");
  t.bytes("device-memory", o.device_memory,
          "Memory per rank that the chart marks as the limit; default: the machine's memory divided by its ranks.");
  add_config(t, o.config);
  const OptionTable train = train_option_table(o.common);
  std::string heading;
  for (const OptionTable::Entry& entry : train.entries()) {
    if (!entry.heading.empty()) heading = entry.heading;
    if (std::ranges::find(kExcluded, entry.option.name) != kExcluded.end()) continue;
    if (!heading.empty()) t.heading(std::exchange(heading, {}) + ", for all runs");
    t.add(train_arguments(entry.option, o));
  }
  return t;
}

void refuse_excluded_options(const OptionTable& table, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(2, argument.find('=') - 2);
    if (table.find(name) != nullptr || std::ranges::find(kExcluded, name) == kExcluded.end()) continue;
    const std::string_view remedy = name == "zero-stage" ? "use --stages"
                                    : name == "model"    ? "use --models"
                                                         : "leave it out";
    throw UsageError(
        fmt::format("--{} is an option of aliquot train that aliquot sweep does not accept: {}.", name, remedy));
  }
}

std::vector<SweepCase> cases_of(const SweepOptions& o) {
  std::vector<SweepCase> cases;
  for (const std::string& model : o.models) {
    for (const int64_t ranks : o.ranks) {
      for (const std::string& stage : o.stages) cases.push_back({model, stage.front() - '0', ranks});
    }
  }
  return cases;
}

std::vector<std::string> command_of(const SweepOptions& o, const SweepCase& one, const std::string& program,
                                    const std::string& metrics) {
  std::vector<std::string> words = {program, "train"};
  words.insert(words.end(), o.train_arguments.begin(), o.train_arguments.end());
  words.insert(words.end(), {"--model", one.model, "--zero-stage", std::to_string(one.zero_stage), "--steps",
                             std::to_string(o.steps), "--metrics", metrics, "--quiet"});
  // --ranks makes a run fail if the launcher starts a different number of ranks.
  const std::string ranks = std::to_string(one.ranks);
  words.insert(words.end(), {"--ranks", ranks});
  if (o.launcher.empty()) return words;
  std::string launcher = o.launcher;
  constexpr std::string_view kRanks = "{ranks}";
  for (size_t at = launcher.find(kRanks); at != std::string::npos; at = launcher.find(kRanks, at))
    launcher.replace(at, kRanks.size(), ranks);
  // The shell splits the launcher's text into words and passes the words of the run's command through unchanged.
  words.insert(words.begin(), {"/bin/sh", "-c", "exec " + launcher + " \"$@\"", "sh"});
  return words;
}

}  // namespace aliquot
