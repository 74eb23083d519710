#pragma once
// The help of a command: the source of --help, of the completions of shells and of manual pages.

#include <span>
#include <string>
#include <vector>

#include "engine/options/option_table.h"
#include "kernels/system/error.h"

namespace aliquot {

/// An option, without the variable that it sets.
struct HelpOption {
  std::string heading;  // heading of the group that begins with this option; else empty
  std::string name, hint, meaning;
  std::string default_text;  // empty if the option has no fixed default
};

/// A subcommand, such as `list` of `aliquot checkpoint`.
struct HelpSubcommand {
  std::string name, usage, summary;
  std::vector<HelpOption> options;
};

struct CommandHelp {
  std::string name, summary;
  std::string usage;  // the arguments, for example "FILE... [--option value ...]"
  std::string text;   // paragraphs, separated by empty lines; lines that begin with a blank are not wrapped
  std::vector<HelpOption> options;
  std::vector<HelpSubcommand> subcommands;
  std::vector<int> exit_codes;
  std::vector<std::string> words = {};  // the values of the first argument, if it is one of a few words
};

/// How the text of --help looks.
struct HelpStyle {
  size_t columns = 100;
  bool bold = false;  // whether headings and names of options are bold
};

/// The style for standard output. On a terminal, lines are as wide as the terminal, but at least 40 and at most 100
/// characters. Text is bold if the terminal supports it, unless the variable NO_COLOR is set to a text that is not
/// empty.
HelpStyle stdout_help_style();

std::vector<HelpOption> help_options(const OptionTable& table);

/// The options as --help prints them.
std::string option_help(std::span<const HelpOption> options, const HelpStyle& style = {});
/// The text of `aliquot NAME --help`.
std::string help_text(const CommandHelp& command, const HelpStyle& style = {});

/// The meaning of an exit code of `aliquot`. "" for other codes.
std::string_view exit_code_meaning(int code);

/// The words in `hint` that the option accepts, for example auto and none in "auto|none|PATH". Words of capitals are
/// placeholders and are left out.
std::vector<std::string> accepted_words(const HelpOption& option);
/// Whether the value of the option may be a path.
bool accepts_path(const HelpOption& option);

}  // namespace aliquot
