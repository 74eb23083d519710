#pragma once
// One table of options a command, from which its parser, its --help, its configuration file and the record of a run are
// made, so that they cannot differ.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options/values.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

/// One option, bound to a variable whose value at the time is the default.
struct Option {
  std::string name;     // without dashes
  std::string hint;     // "N"; empty for a switch
  std::string meaning;  // one line or two
  bool is_switch = false;
  std::function<void(std::string_view)> set;  // throws UsageError without saying where
  std::function<Json()> get;                  // null where nothing was given and nothing is resolved yet
};

class OptionTable {
 public:
  /// What follows belongs under this heading in --help.
  void heading(std::string title);

  void count(std::string name, int64_t& value, WholeRange range, std::string meaning);
  void count(std::string name, std::optional<int64_t>& value, WholeRange range, std::string meaning);
  void bytes(std::string name, std::optional<int64_t>& value, std::string meaning);
  void real(std::string name, double& value, RealRange range, std::string meaning);
  void real(std::string name, std::optional<double>& value, RealRange range, std::string meaning);
  void choice(std::string name, std::string& value, std::vector<std::string> names, std::string meaning);
  void text(std::string name, std::string hint, std::string& value, std::string meaning);
  /// --name alone, or with on or off.
  void toggle(std::string name, bool& value, std::string meaning);
  void toggle(std::string name, std::optional<bool>& value, std::string meaning);
  void add(Option option);

  struct Entry {
    std::string heading;  // of the group it opens; else empty
    Option option;
    std::string default_text;  // empty: none
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Option* find(std::string_view name) const;
  std::vector<std::string> names() const;

  /// Every option with its value, in the table's order.
  Json values() const;
  /// What --help prints of the options, 100 columns wide.
  std::string help() const;

 private:
  std::vector<Entry> entries_;
  std::string next_heading_;
};

/// A value as a configuration file takes it: nothing where nothing was given.
std::string text_of(const Json& value);

/// A value for an option, and where it was given: "--lr", "run.ini:3: lr".
struct GivenOption {
  std::string name, where, value;
};

/// What the arguments (without program and command) give: first what the configuration file says that an option `config`
/// names, if the table has one, then the command line, which wins. That file has lines of `name = value`; # begins a
/// comment, underscores do for dashes, a switch may stand alone, and an empty value leaves what there was. Names are never
/// abbreviated. Throws UsageError, one sentence that names the flag, or the file and its line, and what to do.
std::vector<GivenOption> read_arguments(const OptionTable& table, const std::vector<std::string>& arguments);
/// Sets them, in that order; throws UsageError for a value that will not do.
void set_options(const OptionTable& table, const std::vector<GivenOption>& given);
/// Both.
void parse_arguments(const OptionTable& table, const std::vector<std::string>& arguments);

/// For commands that take names too: moves the words that are no flag and no flag's value out of `words`.
std::vector<std::string> take_places(std::vector<std::string>& words, const OptionTable& table);

}  // namespace aliquot
