#pragma once
// Command line and configuration file onto a table of options, and the table's values as text and JSON.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/options/option_table.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

/// A value as a configuration file takes it: nothing where nothing was given.
std::string text_of(const Json& value);
std::string text_of(const OptionValue& value);

/// Every option with its value, in the table's order.
Json option_values(const OptionTable& table);
/// What --help prints of the options, 100 columns wide.
std::string option_help(const OptionTable& table);

/// A value for an option, and where it was given: "--lr", "run.ini:3: lr".
struct GivenOption {
  std::string name, where, value;
};

/// What the arguments (without program and command) give: first what the configuration file says that an option `config`
/// names, if the table has one, then the command line, which wins. That file has lines of `name = value`; # begins a
/// comment, underscores do for dashes, a switch may stand alone, and an empty value leaves what there was. Names are never
/// abbreviated. Throws UsageError, one sentence that names the flag, or the file and its line, and what to do.
std::vector<GivenOption> read_arguments(const OptionTable& table, const std::vector<std::string>& arguments);
/// Sets them, in that order; throws UsageError for a value that is not accepted.
void set_options(const OptionTable& table, const std::vector<GivenOption>& given);
/// Both.
void parse_arguments(const OptionTable& table, const std::vector<std::string>& arguments);

/// For commands that take names too: moves the words that are no flag and no flag's value out of `words`.
std::vector<std::string> extract_positional(std::vector<std::string>& words, const OptionTable& table);

}  // namespace aliquot
