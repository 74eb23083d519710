// Runs --help, --version, completion and man.
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>

#include "apps/help/command_help.h"
#include "apps/version.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

const std::vector<std::string> kCommands = {"train",  "data",       "eval",   "sample",     "plan", "sweep",
                                            "report", "checkpoint", "doctor", "completion", "man"};

std::string output_of(const std::vector<std::string>& words) {
  const test::CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The options in the output of --help.
std::vector<std::string> options_in(const std::string& help) {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(help)) {
    if (line.starts_with("  --")) names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

/// The rows of the table of exit codes in docs/commands.md.
std::map<std::string, std::string> documented_exit_codes() {
  std::ifstream file(ALIQUOT_COMMANDS_PAGE);
  std::map<std::string, std::string> codes;
  const std::regex row(R"(\| (\d+) \| (.*) \|)");
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, row)) codes[match[1]] = match[2];
  }
  return codes;
}

/// The exit codes in the output of --help. Joins wrapped lines.
std::map<std::string, std::string> exit_codes_in(const std::string& help) {
  std::map<std::string, std::string> codes;
  std::string last;
  const std::string part = help.substr(help.find("\nExit codes\n") + 12);
  for (const std::string& line : lines_of(part)) {
    const std::string code = line.substr(2, line.find(' ', 2) - 2);
    if (!code.empty()) last = code;
    codes[last] += (code.empty() ? " " : "") + line.substr(7);
  }
  return codes;
}

TEST(HelpCommand, EveryCommandListsItsExitCodesAsTheDocsDo) {
  const auto documented = documented_exit_codes();
  ASSERT_EQ(documented.size(), 8u);
  for (const std::string& command : kCommands) {
    const std::string help = output_of({command, "--help"});
    ASSERT_NE(help.find("\nExit codes\n"), std::string::npos) << command;
    const auto codes = exit_codes_in(help);
    EXPECT_TRUE(codes.contains("0") && codes.contains("1")) << command;
    for (const auto& [code, meaning] : codes) {
      ASSERT_TRUE(documented.contains(code)) << command << " " << code;
      EXPECT_EQ(meaning, documented.at(code)) << command << " " << code;
    }
  }
  EXPECT_EQ(exit_codes_in(output_of({"train", "--help"})), documented);
}

TEST(HelpCommand, HelpOfACommandHasSeveralForms) {
  const std::string help = output_of({"plan", "--help"});
  EXPECT_EQ(output_of({"plan", "-h"}), help);
  EXPECT_EQ(output_of({"help", "plan"}), help);
  const std::string all = output_of({"--help"});
  EXPECT_EQ(output_of({"help"}), all);
  for (const std::string& command : kCommands) EXPECT_NE(all.find("\n  " + command + " "), std::string::npos);
  EXPECT_EQ(test::run_aliquot({"help", "plna"}).code, 1);
}

TEST(HelpCommand, LinesAreAsWideAsTheTerminal) {
  const auto widest = [](const std::string& text) {
    size_t most = 0;
    for (const std::string& line : lines_of(text)) {
      if (line.starts_with("  aliquot ") || line.starts_with("  mpirun ")) continue;  // examples are not wrapped
      most = std::max(most, line.find(' ', 8) == std::string::npos ? 0 : line.size());
    }
    return most;
  };
  for (const int columns : {50, 72, 100}) {
    const auto limit = static_cast<size_t>(columns);
    const test::CommandResult help =
        test::run_on_terminal(test::aliquot_program(), {"train", "--help"}, columns, {"NO_COLOR=1"});
    EXPECT_EQ(help.code, 0);
    EXPECT_LE(widest(help.out), limit);
    EXPECT_GT(widest(help.out), limit - 10);
  }
  EXPECT_EQ(widest(test::run_on_terminal(test::aliquot_program(), {"train", "--help"}, 300, {"NO_COLOR=1"}).out),
            widest(output_of({"train", "--help"})));
}

TEST(HelpCommand, IsBoldOnlyOnTerminalsThatSupportIt) {
  const auto is_bold = [](const std::vector<std::string>& environment) {
    return test::run_on_terminal(test::aliquot_program(), {"plan", "--help"}, 80, environment).out.find('\x1b') !=
           std::string::npos;
  };
  EXPECT_TRUE(is_bold({"TERM=xterm", "NO_COLOR="}));
  EXPECT_FALSE(is_bold({"TERM=xterm", "NO_COLOR=1"}));
  EXPECT_FALSE(is_bold({"TERM=dumb", "NO_COLOR="}));
  EXPECT_EQ(output_of({"plan", "--help"}).find('\x1b'), std::string::npos);
}

TEST(HelpCommand, TheVersionNamesTheCommit) {
  const std::string expected = "aliquot " + std::string(version());
  EXPECT_TRUE(std::regex_match(output_of({"--version"}),
                               std::regex(expected + R"((?: \(commit [0-9a-f]{12,}(?:-dirty)?\))?\n)")));
}

/// Runs bash with the completion script. Returns the completions of the last of `words`, each on a line.
std::string completed_by_bash(const std::string& words) {
  const std::string count = std::to_string(std::ranges::count(words, ' '));
  const std::string script = "source <('" + test::aliquot_program() + "' completion bash); COMP_WORDS=(" + words +
                             "); COMP_CWORD=" + count + R"(; _aliquot; printf '%s\n' "${COMPREPLY[@]}")";
  const test::CommandResult result = test::run_program("/bin/bash", {"-c", script});
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(Completion, BashCompletesCommandsOptionsAndValues) {
  EXPECT_EQ(completed_by_bash("aliquot tr"), "train\n");
  EXPECT_EQ(completed_by_bash("aliquot train --zero-s"), "--zero-stage\n");
  EXPECT_EQ(completed_by_bash("aliquot train --zero-stage ''"), "0\n1\n2\n3\n");
  EXPECT_EQ(completed_by_bash("aliquot train --zero-stage ="), "0\n1\n2\n3\n");
  EXPECT_EQ(completed_by_bash("aliquot train --zero-stage = 2"), "2\n");
  EXPECT_EQ(completed_by_bash("aliquot train --progress b"), "bar\n");
  EXPECT_EQ(completed_by_bash("aliquot checkpoint ver"), "verify\n");
  EXPECT_EQ(completed_by_bash("aliquot checkpoint export --dt"), "--dtype\n");
  EXPECT_EQ(completed_by_bash("aliquot report /dev/nul"), "/dev/null\n");
  EXPECT_EQ(completed_by_bash("aliquot train --data /dev/nul"), "/dev/null\n");
  EXPECT_EQ(completed_by_bash("aliquot train --resume au"), "auto\n");
  EXPECT_EQ(completed_by_bash("aliquot train --lr ''"), "\n");
  EXPECT_EQ(completed_by_bash("aliquot plan --machine dgx-"), "dgx-a100\ndgx-h100\ndgx-h200\n");
  EXPECT_EQ(completed_by_bash("aliquot completion ''"), "bash\nzsh\nfish\n");
  EXPECT_EQ(completed_by_bash("aliquot man sam"), "sample\n");
  EXPECT_EQ(completed_by_bash("aliquot man sample ''"), "\n");
}

TEST(Completion, EveryOptionIsInEveryScript) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = output_of({"completion", shell});
    for (const std::string& command : kCommands) {
      for (const std::string& option : options_in(output_of({command, "--help"}))) {
        const std::string name = shell == std::string("fish") ? " -l " + option.substr(2) + " " : option;
        EXPECT_NE(script.find(name), std::string::npos) << shell << " " << command << " " << option;
      }
    }
  }
  const test::CommandResult other = test::run_aliquot({"completion", "bsh"});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("completion does not support 'bsh': expected bash, zsh or fish."), std::string::npos)
      << other.err;
}

bool is_installed(const std::string& program) {
  return test::run_program("/bin/sh", {"-c", "command -v " + program}).code == 0;
}

TEST(Completion, ZshAcceptsTheScript) {
  if (!is_installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  const std::string program = "'" + test::aliquot_program() + "'";
  const test::CommandResult result = test::run_program(
      "/bin/sh", {"-c",
                  program + " completion zsh >$0 && zsh -n $0 && zsh -fc 'autoload compinit; compinit -D; source '"
                            "$0; code=$?; rm $0; exit $code",
                  testing::TempDir() + "/_aliquot"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

TEST(Completion, FishCompletesOptionsAndValues) {
  if (!is_installed("fish")) GTEST_SKIP() << "fish is not installed";
  const auto completed = [](const std::string& line) {
    const test::CommandResult result = test::run_program("/usr/bin/env", {"fish", "-c",
                                                                          "'" + test::aliquot_program() +
                                                                              "' completion fish | source; "
                                                                              "complete -C '" +
                                                                              line + "'"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_TRUE(completed("aliquot tra").starts_with("train\t"));
  EXPECT_TRUE(completed("aliquot train --zero-st").starts_with("--zero-stage\t"));
  EXPECT_EQ(lines_of(completed("aliquot train --zero-stage ")).size(), 4u);
  EXPECT_NE(completed("aliquot checkpoint ver").find("verify\t"), std::string::npos);
  EXPECT_EQ(completed("aliquot completion "), "bash\nfish\nzsh\n");
  EXPECT_EQ(completed("aliquot man sam"), "sample\n");
}

TEST(Man, APageHasEveryOption) {
  for (const std::string& command : kCommands) {
    std::string page = output_of({"man", command});
    for (size_t at = 0; (at = page.find("\\-", at)) != std::string::npos;) page.erase(at, 1);
    for (const std::string& option : options_in(output_of({command, "--help"})))
      EXPECT_NE(page.find("\\fB" + option + "\\fR"), std::string::npos) << command << " " << option;
    EXPECT_NE(output_of({"man"}).find("\\fB" + command + "\\fR"), std::string::npos);
  }
  EXPECT_EQ(test::run_aliquot({"man", "trian"}).code, 1);
}

TEST(Man, GroffHasNoWarnings) {
  if (!is_installed("groff")) GTEST_SKIP() << "groff is not installed";
  for (const std::string& command : kCommands) {
    const test::CommandResult result = test::run_program(
        "/bin/sh", {"-c", "'" + test::aliquot_program() + "' man " + command + " | groff -man -Tascii -ww -z"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_EQ(result.err, "") << command;
  }
}

}  // namespace
}  // namespace aliquot
