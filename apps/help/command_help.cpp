#include "apps/help/command_help.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "apps/console.h"
#include "apps/options/arguments.h"

namespace aliquot {
namespace {

constexpr size_t kMeaningIndent = 6;

constexpr std::array kExitCodes = {
    std::pair<int, std::string_view>{0, "success"},
    std::pair<int, std::string_view>{1, "the command was used incorrectly, or `checkpoint diff` found a difference"},
    std::pair<int, std::string_view>{2, "this machine or build cannot do what was requested"},
    std::pair<int, std::string_view>{3, "a rank, a collective or the access to a file failed during the run"},
    std::pair<int, std::string_view>{4,
                                     "too many skipped steps in a row, or weights that were updated from gradients "
                                     "that are not finite"},
    std::pair<int, std::string_view>{5, "a checkpoint is missing or cannot be used"},
    std::pair<int, std::string_view>{75, "a signal requested the stop; the finished steps are saved"},
    std::pair<int, std::string_view>{137, "a rank was killed"},
};

/// Wraps `text` into lines of at most `width` characters. Indents all lines but the first by `indent` blanks.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string result;
  size_t column = 0, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t length = end - at;
    if (column > 0 && column + 1 + length > width) {
      result += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += text.substr(at, length);
    column += length;
    at = end + 1;
  }
  return result;
}

std::string bold(const std::string& text, const HelpStyle& style) {
  return style.bold ? "\x1b[1m" + text + "\x1b[0m" : text;
}

/// Wraps each line of `text`, except lines that begin with a blank.
std::string wrapped_paragraphs(const std::string& text, size_t width) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    result += (line.starts_with(' ') ? line : wrapped(line, width, 0)) + "\n";
    at = end + 1;
  }
  return result;
}

/// One line for each subcommand, with its summary in a second column.
std::string subcommand_lines(const std::vector<HelpSubcommand>& subcommands, size_t width) {
  size_t column = 0;
  for (const HelpSubcommand& one : subcommands) column = std::max(column, one.name.size() + one.usage.size() + 6);
  const size_t rest = width > column + 20 ? width - column : width;
  std::string text;
  for (const HelpSubcommand& one : subcommands) {
    text += fmt::format("  {:<{}}{}\n", one.name + " " + one.usage, column - 2, wrapped(one.summary, rest, column));
  }
  return text;
}

}  // namespace

HelpStyle stdout_help_style() {
  if (!is_on_terminal(stdout)) return {};
  HelpStyle style;
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  style.columns = std::clamp<size_t>(known ? size.ws_col : 80, 40, 100);
  const char *no_color = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  const bool supported = terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
  style.bold = supported && (no_color == nullptr || *no_color == '\0');
  return style;
}

std::vector<HelpOption> help_options(const OptionTable& table) {
  std::vector<HelpOption> options;
  for (const auto& [heading, option, default_value] : table.entries())
    options.push_back({heading, option.name, option.hint, option.meaning, text_of(default_value)});
  return options;
}

std::string option_help(std::span<const HelpOption> options, const HelpStyle& style) {
  std::string text;
  for (const HelpOption& option : options) {
    if (!option.heading.empty()) text += (text.empty() ? "" : "\n") + bold(option.heading, style) + "\n";
    std::string names = option.hint;
    if (!option.default_text.empty()) names += (names.empty() ? "" : "  ") + fmt::format("({})", option.default_text);
    const std::string flag = "--" + option.name;
    text += "  " + bold(flag, style);
    if (!names.empty()) {
      const std::string gap = option.hint.empty() ? "  " : " ";
      const bool fits = 2 + flag.size() + gap.size() + names.size() <= style.columns;
      const std::string indent(kMeaningIndent, ' ');
      text += fits ? gap + names : "\n" + indent + wrapped(names, style.columns - kMeaningIndent, kMeaningIndent);
    }
    text += "\n" + std::string(kMeaningIndent, ' ') +
            wrapped(option.meaning, style.columns - kMeaningIndent, kMeaningIndent) + "\n";
  }
  return text;
}

std::string help_text(const CommandHelp& command, const HelpStyle& style) {
  std::string text = bold("aliquot " + command.name, style) + " " + command.usage + "\n\n";
  if (!command.subcommands.empty()) text += subcommand_lines(command.subcommands, style.columns) + "\n";
  text += wrapped_paragraphs(command.text, style.columns);
  if (!command.options.empty()) text += "\n" + option_help(command.options, style);
  for (const HelpSubcommand& one : command.subcommands) {
    if (!one.options.empty()) text += "\n" + bold(one.name, style) + "\n" + option_help(one.options, style);
  }
  text += "\n" + bold("Exit codes", style) + "\n";
  for (const int code : command.exit_codes) {
    text += fmt::format("  {:<5}{}\n", code, wrapped(std::string(exit_code_meaning(code)), style.columns - 7, 7));
  }
  return text;
}

std::string_view exit_code_meaning(int code) {
  for (const auto& [value, meaning] : kExitCodes) {
    if (value == code) return meaning;
  }
  return "";
}

std::vector<std::string> accepted_words(const HelpOption& option) {
  std::vector<std::string> words;
  for (size_t at = 0; at < option.hint.size();) {
    const size_t end = std::min(option.hint.find('|', at), option.hint.size());
    const std::string word = option.hint.substr(at, end - at);
    const bool is_placeholder = std::ranges::any_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!is_placeholder && option.hint.find('|') != std::string::npos) words.push_back(word);
    at = end + 1;
  }
  // The default of an option with a placeholder can be a word: auto or none.
  if (words.empty() && (option.default_text == "auto" || option.default_text == "none"))
    words.push_back(option.default_text);
  return words;
}

bool accepts_path(const HelpOption& option) {
  return std::ranges::any_of(std::array{"FILE", "DIR", "PATH"}, [&](const char* placeholder) {
    return option.hint.find(placeholder) != std::string::npos;
  });
}

}  // namespace aliquot
