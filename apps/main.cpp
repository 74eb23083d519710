// The `aliquot` command: runs a subcommand, and reports an exception as one line and an exit code.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/error_notice.h"
#include "apps/help/completion.h"
#include "apps/help/man_page.h"
#include "apps/options/flag_names.h"
#include "apps/version.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"
#include "sharding/launcher.h"

namespace aliquot {
namespace {

struct Command {
  CommandHelp (*help)();
  int (*run)(const Arguments&);
};

int run_completion(const Arguments& arguments);
int run_man(const Arguments& arguments);
CommandHelp completion_help();
CommandHelp man_help();

constexpr std::array kCommands{Command{train_help, run_train},   Command{data_help, run_data},
                               Command{eval_help, run_eval},     Command{sample_help, run_sample},
                               Command{plan_help, run_plan},     Command{sweep_help, run_sweep},
                               Command{report_help, run_report}, Command{checkpoint_help, run_checkpoint},
                               Command{doctor_help, run_doctor}, Command{completion_help, run_completion},
                               Command{man_help, run_man}};

std::vector<CommandHelp> all_help() {
  std::vector<CommandHelp> all;
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    all.push_back(command.help());
    names.push_back(all.back().name);
  }
  for (CommandHelp& command : all) {
    if (command.name == "man") command.words = names;
  }
  return all;
}

std::string help() {
  std::string text =
      "aliquot trains models that are too large for a single rank.\n\n  aliquot COMMAND [--option value ...]\n\n";
  for (const CommandHelp& command : all_help()) text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  return text +
         "\naliquot COMMAND --help lists the options of a command and its exit codes; aliquot --version prints "
         "the version.\n";
}

std::string version_text() {
  return fmt::format("{}{}", version(), commit().empty() ? "" : fmt::format(" (commit {})", commit()));
}

CommandHelp completion_help() {
  return {.name = "completion",
          .summary = "print a script that completes options in bash, zsh or fish",
          .usage = "bash|zsh|fish",
          .text =
              "  source <(aliquot completion bash)                                              in ~/.bashrc\n"
              "  source <(aliquot completion zsh)                          in ~/.zshrc, after compinit\n"
              "  aliquot completion fish >~/.config/fish/completions/aliquot.fish\n\n"
              "cmake --install installs these scripts where the shells find them.",
          .options = {},
          .subcommands = {},
          .exit_codes = {0, 1, 3},
          .words = completion_shells()};
}

CommandHelp man_help() {
  return {.name = "man",
          .summary = "print a manual page",
          .usage = "[COMMAND]",
          .text =
              "  aliquot man train | man -l -\n\n"
              "Prints the page aliquot(1), or that of a command, for example aliquot-train(1). cmake --install "
              "installs these pages.",
          .options = {},
          .subcommands = {},
          .exit_codes = {0, 1, 3}};
}

int run_completion(const Arguments& arguments) {
  const std::vector<std::string> shells = completion_shells();
  if (arguments.size() != 1) throw UsageError("completion needs the name of a shell: bash, zsh or fish.");
  if (std::ranges::find(shells, arguments[0]) == shells.end())
    throw UsageError("completion does not support '" + arguments[0] + "': expected bash, zsh or fish.");
  write_stream(stdout, completion_script(arguments[0], all_help()));
  return 0;
}

[[noreturn]] void refuse_unknown(const std::string& given) {
  std::vector<std::string> names;
  for (const CommandHelp& command : all_help()) names.push_back(command.name);
  throw UsageError("unknown command '" + given + "'." + did_you_mean(given, names, "") +
                   " aliquot --help lists all commands.");
}

/// Whether `arguments` contain --help or -h.
bool wants_help(const Arguments& arguments) {
  return std::ranges::any_of(arguments, [](const std::string& one) { return one == "--help" || one == "-h"; });
}

const Command& find_command(const std::string& name) {
  for (const Command& command : kCommands) {
    if (command.help().name == name) return command;
  }
  refuse_unknown(name);
}

int run_man(const Arguments& arguments) {
  if (arguments.size() > 1) throw UsageError("man needs at most one command.");
  write_stream(stdout, arguments.empty() ? man_page(all_help(), version_text())
                                         : man_page(find_command(arguments[0]).help(), version_text()));
  return 0;
}

int dispatch(const Arguments& words) {
  const bool asks_help = !words.empty() && (words[0] == "--help" || words[0] == "-h" || words[0] == "help");
  if (words.empty() || (asks_help && words.size() == 1)) {
    write_stream(words.empty() ? stderr : stdout, help());
    return static_cast<int>(words.empty() ? ExitCode::kUsage : ExitCode::kDone);
  }
  if (words[0] == "--version") {
    write_stdout("aliquot {}\n", version_text());
    return 0;
  }
  const Command& command = find_command(words[asks_help ? 1 : 0]);
  const Arguments arguments(words.begin() + 1, words.end());
  if (!asks_help && !wants_help(arguments)) return command.run(arguments);
  if (launched_rank() == 0) write_stream(stdout, help_text(command.help(), stdout_help_style()));
  return 0;
}

int fail(ExitCode code, const std::string& sentence) {
  warn("{}", sentence);
  if (launched_rank() == 0) note_reported_error(sentence);
  return static_cast<int>(code);
}

/// Reports an error of this process. All ranks find the same wrong usage and the same damaged checkpoints, so the first
/// rank reports them. The other ranks on its node see the notice of the first rank (error_notice.h). The
/// launcher ends the ranks on other nodes soon after the first one has ended. If neither happens, the error concerns
/// only this rank, for example because a file is missing on its node.
int fail(const Error& error) {
  const std::string sentence = with_flag_names(error.what());
  const ExitCode code = error.exit_code();
  const bool same_on_all = code == ExitCode::kUsage || code == ExitCode::kUnavailable || code == ExitCode::kCheckpoint;
  if (launched_rank() == 0 || !same_on_all) return fail(code, sentence);
  constexpr std::chrono::seconds kLimit{30};  // on a loaded machine, the launcher may take more than 10 seconds
  if (first_rank_reports_error(sentence, kLimit)) return static_cast<int>(code);
  return fail(code, fmt::format("rank {}: {}", launched_rank(), sentence));
}

int run_and_report(const Arguments& words) {
  try {
    return dispatch(words);
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kUnavailable, "out of memory: use a smaller --micro-batch or a higher --zero-stage.");
  } catch (const std::exception& error) {
    return fail(ExitCode::kFault, std::string("internal error: ") + error.what());
  } catch (...) {
    return fail(ExitCode::kFault, "internal error: an exception of an unknown type.");
  }
}

}  // namespace

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
