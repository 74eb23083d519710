#include "apps/help/man_page.h"

#include <fmt/format.h>

namespace aliquot {
namespace {

/// Escapes `text` for roff.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '|') {
      result += "|\\:";  // a line may end here
    } else if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) {
      result += std::string("\\&") + c;  // otherwise the line would be a request
    } else {
      result += c;
    }
  }
  return result;
}

std::string header(std::string_view page, std::string_view version) {
  std::string title;
  for (const char c : page) title += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return fmt::format(".TH \"{}\" \"1\" \"\" \"aliquot {}\" \"User Commands\"\n", escaped(title), escaped(version));
}

/// The paragraphs of CommandHelp::text. Lines that begin with a blank are not filled.
std::string paragraphs(std::string_view text) {
  std::string result;
  bool in_listing = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    const bool is_listing = line.starts_with(' ');
    if (is_listing != in_listing) result += is_listing ? ".nf\n" : ".fi\n";
    in_listing = is_listing;
    result += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return in_listing ? result + ".fi\n" : result;
}

std::string options_text(std::span<const HelpOption> options) {
  std::string text;
  for (const HelpOption& option : options) {
    if (!option.heading.empty()) text += fmt::format(".SS {}\n", escaped(option.heading));
    text += fmt::format(".TP\n\\fB\\-\\-{}\\fR", escaped(option.name));
    if (!option.hint.empty()) text += fmt::format(" \\fI{}\\fR", escaped(option.hint));
    if (!option.default_text.empty()) text += fmt::format(" ({})", escaped(option.default_text));
    text += "\n" + escaped(option.meaning) + "\n";
  }
  return text;
}

}  // namespace

std::string man_page(std::span<const CommandHelp> commands, std::string_view version) {
  std::string text = header("aliquot", version) +
                     ".SH NAME\naliquot \\- train models that are too large for a single rank\n"
                     ".SH SYNOPSIS\n\\fBaliquot\\fR \\fICOMMAND\\fR [\\-\\-option value ...]\n.SH COMMANDS\n";
  std::string others;
  for (const CommandHelp& command : commands) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(command.name), escaped(command.summary));
    others += fmt::format("{}.BR aliquot\\-{} (1)", others.empty() ? "" : ",\n", escaped(command.name));
  }
  return text + ".SH SEE ALSO\n" + others + "\n";
}

std::string man_page(const CommandHelp& command, std::string_view version) {
  const std::string name = "aliquot-" + command.name;
  std::string text =
      header(name, version) + fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fBaliquot {}\\fR {}\n.SH DESCRIPTION\n",
                                          escaped(name), escaped(command.summary), escaped(command.name),
                                          escaped(command.usage));
  text += paragraphs(command.text);
  if (!command.subcommands.empty()) text += ".SH SUBCOMMANDS\n";
  for (const HelpSubcommand& one : command.subcommands)
    text += fmt::format(".TP\n\\fB{}\\fR {}\n{}\n", escaped(one.name), escaped(one.usage), escaped(one.summary));
  if (!command.options.empty()) text += ".SH OPTIONS\n" + options_text(command.options);
  for (const HelpSubcommand& one : command.subcommands) {
    if (!one.options.empty())
      text += fmt::format(".SH OPTIONS OF {}\n{}", escaped(one.name), options_text(one.options));
  }
  text += ".SH EXIT STATUS\n";
  for (const int code : command.exit_codes)
    text += fmt::format(".TP\n{}\n{}\n", code, escaped(exit_code_meaning(code)));
  return text + ".SH SEE ALSO\n.BR aliquot (1)\n";
}

}  // namespace aliquot
