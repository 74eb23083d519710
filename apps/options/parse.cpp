// Reads a command line and a configuration file into a table of options.
#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "apps/options/arguments.h"
#include "apps/options/names_in_other_tools.h"
#include "apps/options/settings_file.h"
#include "checkpoint/file/tensor_entry.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

namespace po = boost::program_options;

constexpr const char* kPositionalName = "positional argument";  // has a blank, so it cannot clash with an option

po::options_description describe(const OptionTable& table) {
  po::options_description description;
  for (const auto& entry : table.entries()) {
    auto* value = po::value<std::string>();
    if (entry.option.is_switch) value->implicit_value("on");
    description.add_options()(entry.option.name.c_str(), value, "");
  }
  description.add_options()(kPositionalName, po::value<std::vector<std::string>>(), "");
  return description;
}

[[noreturn]] void refuse_unknown(const OptionTable& table, const std::string& given, const std::string& remark = "") {
  const std::string name = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  const std::string other = name_in_other_tools(name, table, "--");
  throw UsageError("unknown option " + given + "." + (other.empty() ? did_you_mean(name, table.names(), "--") : other) +
                   " --help lists all options; names cannot be abbreviated." + remark);
}

/// Refuses a word that begins with a dash and is not an option, where the command expects files.
[[noreturn]] void refuse_word(const OptionTable& table, const std::string& word) {
  std::error_code ignored;  // if exists() fails, the word is not a file to suggest
  const bool is_file = std::filesystem::exists(word, ignored);
  refuse_unknown(table, word, is_file ? " To name a file that begins with a dash, write ./" + word + "." : "");
}

// Converts Boost's errors to UsageError.
po::parsed_options parse_line(const OptionTable& table, const std::vector<std::string>& arguments) {
  const po::options_description description = describe(table);
  namespace style = po::command_line_style;
  constexpr int kStyle = style::allow_long | style::long_allow_adjacent | style::long_allow_next;
  try {
    return po::command_line_parser(arguments)
        .options(description)
        .positional(po::positional_options_description().add(kPositionalName, -1))
        .style(kStyle)
        .run();
  } catch (const po::unknown_option& error) {
    refuse_unknown(table, error.get_option_name());
  } catch (const po::error_with_option_name& error) {
    throw UsageError(error.get_option_name() + " needs a value: --help describes it.");
  } catch (const po::error& error) {
    throw UsageError(std::string("cannot parse the command line: ") + error.what() + ".");
  }
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

void read_config_line(const OptionTable& table, const std::string& line, const std::string& where,
                      std::vector<GivenOption>& given) {
  const size_t equals = line.find('=');
  std::string name = trimmed(line.substr(0, equals));
  std::ranges::replace(name, '_', '-');
  if (name.starts_with("--")) name.erase(0, 2);
  const Option* option = table.find(name);
  if (name == "config")
    throw UsageError(where + ": a configuration file cannot contain config: give --config on the command line.");
  if (option == nullptr && equals == std::string::npos && name.find_first_of(" \t") != std::string::npos)
    throw UsageError(where + ": '" + printable(line) + "' has no '=': expected the form name = value.");
  if (option == nullptr) {
    const std::string other = name_in_other_tools(name, table, "");
    throw UsageError(where + ": unknown key '" + printable(name) + "'." +
                     (other.empty() ? did_you_mean(name, table.names(), "") : other) +
                     " Keys are the options of --help without the leading dashes.");
  }
  const std::string value = equals == std::string::npos ? "" : trimmed(line.substr(equals + 1));
  if (equals != std::string::npos && value.empty()) return;  // --dry-run prints unset options in this form
  if (equals == std::string::npos && !option->is_switch) {
    throw UsageError(where + ": '" + name + "' has no value: write " + name + " = VALUE.");
  }
  GivenOption one{name, where + ": " + name, value.empty() ? "on" : value, true};
  one.is_default = text_of(table.find(name)->get()) == one.value;
  given.push_back(std::move(one));
}

void read_config_file(const OptionTable& table, const std::string& path, std::vector<GivenOption>& given) {
  std::istringstream file(read_settings_file("--config", path));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line.substr(0, line.find('#')));
    const bool is_section = line.starts_with('[') && line.ends_with(']');  // a section header of an INI file; ignored
    if (!line.empty() && !is_section) read_config_line(table, line, path + ":" + std::to_string(number), given);
  }
}

}  // namespace

std::vector<std::string> extract_positional(std::vector<std::string>& words, const OptionTable& table) {
  std::vector<std::string> places, flags;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      if (words[i].size() > 1 && words[i][0] == '-') refuse_word(table, words[i]);
      places.push_back(words[i]);
      continue;
    }
    flags.push_back(words[i]);
    const Option* option = table.find(words[i].substr(2));
    if (option == nullptr && words[i].size() > 2 && words[i].find('=') == std::string::npos)
      refuse_word(table, words[i]);
    if (option != nullptr && !option->is_switch && i + 1 < words.size()) flags.push_back(words[++i]);
  }
  words = std::move(flags);
  return places;
}

std::vector<GivenOption> read_arguments(const OptionTable& table, const std::vector<std::string>& arguments) {
  const po::parsed_options parsed = parse_line(table, arguments);
  std::vector<GivenOption> all;
  for (const po::option& given : parsed.options) {
    if (given.string_key == kPositionalName) {
      if (const std::string& word = given.value.front(); word.size() > 1 && word[0] == '-') refuse_unknown(table, word);
      throw UsageError("unexpected argument '" + given.value.front() +
                       "': every value must follow its --option. --help lists all options.");
    }
    if (given.string_key == "config") read_config_file(table, given.value.front(), all);
  }
  for (const po::option& given : parsed.options) {
    if (table.find(given.string_key) == nullptr) refuse_unknown(table, given.string_key);
    all.push_back({given.string_key, "--" + given.string_key, given.value.empty() ? "on" : given.value.front()});
  }
  return all;
}

void set_options(const OptionTable& table, const std::vector<GivenOption>& given) {
  for (const GivenOption& one : given) {
    try {
      table.find(one.name)->set(one.value);
    } catch (const UsageError& error) {
      throw UsageError(one.where + ": " + error.what());
    }
  }
}

void add_config(OptionTable& table, std::string& path) {
  table.text("config", "FILE", path,
             "Read options from a file with lines 'name = value' and # comments; the command line takes precedence.");
}

void parse_arguments(const OptionTable& table, const std::vector<std::string>& arguments) {
  set_options(table, read_arguments(table, arguments));
}

}  // namespace aliquot
