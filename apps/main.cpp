// The `aliquot` command: runs a subcommand, and reports an exception as one line and an exit code.
#include <array>
#include <csignal>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/options/flag_names.h"
#include "apps/version.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"

namespace aliquot {
namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const Arguments&);
};

constexpr std::array kCommands{
    Command{"train", "train a model, sharded over ranks", run_train},
    Command{"data", "encode text as tokens for train --data", run_data},
    Command{"plan", "predict memory, traffic and step time of a run, without running it", run_plan},
    Command{"sweep", "measure memory per rank against model size, as a table and a chart", run_sweep},
    Command{"report", "make an HTML page about one or several runs", run_report},
    Command{"checkpoint", "list, show, verify, compare, export, import and prune checkpoints", run_checkpoint},
    Command{"doctor", "show what this build and this machine support", run_doctor},
};

std::string help() {
  std::string text =
      "aliquot trains models that are too large for a single rank.\n\n  aliquot COMMAND [--option value ...]\n\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  }
  return text + "\naliquot COMMAND --help lists the options of a command; aliquot --version prints the version.\n";
}

[[noreturn]] void refuse_unknown(const std::string& given) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  throw UsageError("unknown command '" + given + "'." + did_you_mean(given, names, "") +
                   " aliquot --help lists all commands.");
}

int dispatch(const Arguments& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    write_stream(words.empty() ? stderr : stdout, help());
    return static_cast<int>(words.empty() ? ExitCode::kUsage : ExitCode::kDone);
  }
  if (words[0] == "--version") {
    write_stdout("aliquot {}\n", version());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name == words[0]) return command.run({words.begin() + 1, words.end()});
  }
  refuse_unknown(words[0]);
}

int fail(ExitCode code, const std::string& sentence) {
  warn("{}", sentence);
  return static_cast<int>(code);
}

int run_and_report(const Arguments& words) {
  try {
    return dispatch(words);
  } catch (const Error& error) {
    return fail(error.exit_code(), with_flag_names(error.what()));
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kUnavailable, "out of memory: use a smaller --micro-batch or a higher --zero-stage.");
  } catch (const std::exception& error) {
    return fail(ExitCode::kFault, std::string("internal error: ") + error.what());
  } catch (...) {
    return fail(ExitCode::kFault, "internal error: an exception of an unknown type.");
  }
}

}  // namespace

bool wants_help(const Arguments& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return true;
  }
  return false;
}

}  // namespace aliquot

int main(int argc, char** argv) {
  aliquot::reserve_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then returns an error
  aliquot::set_log_sink(aliquot::log_with_flag_names);
  const int code = aliquot::run_and_report({argv + 1, argv + argc});
  const std::string output_error = aliquot::stdout_error();
  if (output_error.empty()) return code;
  aliquot::fail(aliquot::ExitCode::kFault, "writing to standard output failed: " + output_error + ".");
  return code == 0 ? static_cast<int>(aliquot::ExitCode::kFault) : code;
}
