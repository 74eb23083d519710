#pragma once
// Reads a command line and a configuration file into a table of options, and formats the values as text and JSON.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/options/option_table.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

/// The value as a configuration file accepts it; empty if the option is not set.
std::string text_of(const Json& value);
std::string text_of(const OptionValue& value);

/// All options with their values, in the order of the table.
Json option_values(const OptionTable& table);

/// The value of an option. `where` names its source in messages: "--lr" or "run.ini:3: lr".
struct GivenOption {
  std::string name, where, value;
  bool from_file = false;   // from the file of --config
  bool is_default = false;  // from the file, and equal to the default: a file may list all options
};

/// Adds the option --config. read_arguments() reads the file, and `path` is not used otherwise. `path` must outlive the
/// table.
void add_config(OptionTable& table, std::string& path);

/// Parses `arguments` (without program and subcommand). Returns the values of the file that --config names, if any,
/// then those of the command line, so that the command line takes precedence. The file has lines `name = value`: #
/// begins a comment, underscores may replace dashes, a switch needs no value, and an empty value is ignored. Names
/// cannot be abbreviated. Throws UsageError that names the flag, or the file and the line.
std::vector<GivenOption> read_arguments(const OptionTable& table, const std::vector<std::string>& arguments);
/// Sets the options in order. Throws UsageError for an invalid value.
void set_options(const OptionTable& table, const std::vector<GivenOption>& given);
/// Calls read_arguments() and set_options().
void parse_arguments(const OptionTable& table, const std::vector<std::string>& arguments);

/// Removes the positional arguments (neither an option nor the value of one) from `words` and returns them. Throws
/// UsageError for an argument such as -j: all options have two dashes.
std::vector<std::string> extract_positional(std::vector<std::string>& words, const OptionTable& table);

}  // namespace aliquot
