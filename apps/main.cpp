// The `aliquot` command: finds the command meant, and turns what it throws into one line and an exit code.
#include <array>
#include <csignal>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "apps/commands.h"
#include "apps/console.h"
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
    Command{"plan", "what a run would cost, without running it", run_plan},
    Command{"sweep", "memory per rank against model size, as a table and a picture", run_sweep},
    Command{"report", "a page about one run or several", run_report},
    Command{"checkpoint", "list, show, verify, compare, export, import and prune checkpoints", run_checkpoint},
    Command{"doctor", "what this build and this machine offer", run_doctor},
};

std::string help() {
  std::string text =
      "aliquot trains models that no single rank can hold.\n\n  aliquot COMMAND [--option value ...]\n\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  }
  return text + "\naliquot COMMAND --help says what a command can be told; aliquot --version, which build this is.\n";
}

[[noreturn]] void refuse_unknown(const std::string& given) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  throw UsageError("there is no command '" + given + "'." + did_you_mean(given, names, "") +
                   " aliquot --help lists them.");
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
    return fail(error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kUnavailable,
                "the system has no more memory: a smaller --micro-batch or a higher --zero-stage needs less.");
  } catch (const std::exception& error) {
    return fail(ExitCode::kFault, std::string("an error that should not happen: ") + error.what());
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
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may grow no more is an error of its writer, as on a full disk
  aliquot::set_log_sink(aliquot::log_to_standard_error);
  const int code = aliquot::run_and_report({argv + 1, argv + argc});
  const std::string loss = aliquot::stdout_error();
  if (loss.empty()) return code;
  aliquot::fail(aliquot::ExitCode::kFault, "standard output could not be written: " + loss + ".");
  return code == 0 ? static_cast<int>(aliquot::ExitCode::kFault) : code;
}
