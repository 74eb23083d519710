#include "apps/help/completion.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace aliquot {
namespace {

/// Options that all commands have.
const HelpOption kHelpOption{"", "help", "", "Print the help of the command.", ""};

/// Quotes `text` for a POSIX shell, and for fish if `text` has no backslash.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// The options of a command and of its subcommands, each name once, and --help.
std::vector<HelpOption> all_options(const CommandHelp& command) {
  std::vector<HelpOption> options = command.options;
  for (const HelpSubcommand& one : command.subcommands) {
    for (const HelpOption& option : one.options) {
      const auto same = [&](const HelpOption& other) { return other.name == option.name; };
      if (std::ranges::none_of(options, same)) options.push_back(option);
    }
  }
  options.push_back(kHelpOption);
  return options;
}

std::vector<std::string> names(std::span<const CommandHelp> commands) {
  std::vector<std::string> result;
  for (const CommandHelp& command : commands) result.push_back(command.name);
  return result;
}

/// The words that can follow the name of the command: its subcommands, or the values of its first argument.
std::vector<std::string> first_words(const CommandHelp& command) {
  std::vector<std::string> result = command.words;
  for (const HelpSubcommand& one : command.subcommands) result.push_back(one.name);
  return result;
}

/// The branches of a bash `case` that set `words` or `files` for the value of an option.
std::string bash_values(const CommandHelp& command) {
  std::string text;
  for (const HelpOption& option : all_options(command)) {
    if (option.hint.empty()) continue;
    text += fmt::format("    '{} --{}') words={} files={} ;;\n", command.name, option.name,
                        shell_quoted(fmt::format("{}", fmt::join(accepted_words(option), " "))),
                        accepts_path(option) ? "1" : "");
  }
  return text;
}

std::string bash_script(std::span<const CommandHelp> commands) {
  std::string values, options;
  for (const CommandHelp& command : commands) {
    values += bash_values(command);
    std::string all;
    for (const HelpOption& option : all_options(command)) all += (all.empty() ? "--" : " --") + option.name;
    options += fmt::format("        {}) options={} first={} files={} ;;\n", command.name, shell_quoted(all),
                           shell_quoted(fmt::format("{}", fmt::join(first_words(command), " "))),
                           command.words.empty() ? "1" : "");
  }
  return fmt::format(
      R"(# Completions of aliquot for bash.
_aliquot() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
  local words= files= options= first=
  # Bash splits --option=value into three words.
  if [ "$current" = = ]; then
    current=
  elif [ "$previous" = = ]; then
    previous=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  if [ "$COMP_CWORD" = 1 ]; then command= previous=; fi
  case "$command $previous" in
    ' ') words={commands} ;;
{values}    *)
      case "$command" in
{options}      esac
      case "$current" in
        -*) words=$options files= ;;
        *) if [ "$COMP_CWORD" = 2 ]; then words=$first; fi ;;
      esac
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ -n "$files" ]; then
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _aliquot aliquot
)",
      fmt::arg("commands", shell_quoted(fmt::format("{} --help --version", fmt::join(names(commands), " ")))),
      fmt::arg("values", values), fmt::arg("options", options));
}

/// Escapes `text` for the description of an option of _arguments or of a value of _describe.
std::string zsh_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_option(const HelpOption& option) {
  std::string spec = fmt::format("--{}[{}]", option.name, zsh_escaped(option.meaning));
  if (option.hint.empty()) return shell_quoted(spec);
  const std::vector<std::string> words = accepted_words(option);
  spec += fmt::format(":{}:", zsh_escaped(option.hint));
  if (words.empty()) {
    spec += accepts_path(option) ? "_files" : " ";
  } else if (accepts_path(option)) {
    spec += fmt::format("{{compadd -- {}; _files}}", fmt::join(words, " "));
  } else {
    spec += fmt::format("({})", fmt::join(words, " "));
  }
  return shell_quoted(spec);
}

std::string zsh_script(std::span<const CommandHelp> commands) {
  std::string list, cases;
  for (const CommandHelp& command : commands) {
    list += fmt::format("    {}\n", shell_quoted(command.name + ":" + zsh_escaped(command.summary)));
    cases += fmt::format("    {})\n      _arguments", command.name);
    if (const std::vector<std::string> words = first_words(command); !words.empty())
      cases += fmt::format(" \\\n        {}", shell_quoted(fmt::format("1:word:({})", fmt::join(words, " "))));
    for (const HelpOption& option : all_options(command)) cases += " \\\n        " + zsh_option(option);
    cases += command.words.empty() ? " \\\n        '*:file:_files' ;;\n" : " ;;\n";
  }
  return fmt::format(R"(#compdef aliquot
# Completions of aliquot for zsh.
_aliquot() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [[ $funcstack[1] = _aliquot ]]; then _aliquot "$@"; else compdef _aliquot aliquot; fi
)",
                     list, cases);
}

std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

std::string fish_option(const CommandHelp& command, const HelpOption& option) {
  std::string line = fmt::format("complete -c aliquot -n '__fish_seen_subcommand_from {}' -l {} -d {}", command.name,
                                 option.name, fish_quoted(option.meaning));
  if (option.hint.empty()) return line + "\n";
  line += accepts_path(option) ? " -r -F" : " -x";
  const std::vector<std::string> words = accepted_words(option);
  if (!words.empty()) line += fmt::format(" -a '{}'", fmt::join(words, " "));
  return line + "\n";
}

std::string fish_script(std::span<const CommandHelp> commands) {
  std::string text = "# Completions of aliquot for fish.\n";
  for (const CommandHelp& command : commands) {
    text += fmt::format("complete -c aliquot -f -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.summary));
  }
  for (const char* name : {"help", "version"})
    text += fmt::format("complete -c aliquot -f -n __fish_use_subcommand -l {}\n", name);
  for (const CommandHelp& command : commands) {
    const std::string names = fmt::format("{}", fmt::join(first_words(command), " "));
    if (!command.words.empty())
      text += fmt::format("complete -c aliquot -f -n '__fish_seen_subcommand_from {}' -a '{}'\n", command.name, names);
    for (const HelpSubcommand& one : command.subcommands) {
      text += fmt::format(
          "complete -c aliquot -f -n '__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from {}' -a {} -d "
          "{}\n",
          command.name, names, one.name, fish_quoted(one.summary));
    }
    for (const HelpOption& option : all_options(command)) text += fish_option(command, option);
  }
  return text;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string completion_script(std::string_view shell, std::span<const CommandHelp> commands) {
  if (shell == "bash") return bash_script(commands);
  return shell == "zsh" ? zsh_script(commands) : fish_script(commands);
}

}  // namespace aliquot
