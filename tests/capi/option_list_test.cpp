// Compares the list of options in <aliquot/c.h> with the table of options, and checks that the limits of the table are
// those of the engine.
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

#include "capi/options.h"
#include "engine/engine.h"
#include "kernels/system/error.h"

namespace aliquot::capi {
namespace {

constexpr std::string_view kBegin = "/* The options, with the form of their values.", kEnd = " */";
constexpr std::size_t kColumns = 120;

std::string text_of(const OptionValue& value) {
  struct Text {
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool on) const { return on ? "on" : "off"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(uint64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return exact_text(number); }
    std::string operator()(const std::string& text) const { return text; }
  };
  return std::visit(Text{}, value);
}

/// Appends `text` in lines of at most kColumns, each of which begins with " *     ".
void append_wrapped(std::string& list, const std::string& text) {
  std::string line = " *    ";
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kColumns) list += line + "\n", line = " *    ";
    line += " " + word;
  }
  list += line + "\n";
}

/// Returns the list as the header has it. Messages of the table name options as flags: "--clip" becomes "clip".
std::string expected_list() {
  std::string list;
  Options options;
  const OptionTable table = common_option_table(options);
  for (const OptionTable::Entry& entry : table.entries()) {
    const Option& option = entry.option;
    list += fmt::format(" * {} {}\n", option.name, option.is_switch ? "on|off" : option.hint);
    std::string meaning = option.meaning;
    for (auto at = meaning.find("--"); at != std::string::npos; at = meaning.find("--")) meaning.erase(at, 2);
    const std::string by_default = text_of(option.get());
    append_wrapped(list, by_default.empty() ? meaning : fmt::format("{} Default: {}.", meaning, by_default));
  }
  return list;
}

TEST(OptionList, HeaderListsTheOptionsOfTheTable) {
  std::ifstream header(ALIQUOT_C_HEADER);
  std::string list;
  bool inside = false;
  for (std::string line; std::getline(header, line);) {
    if (inside && line == kEnd) break;
    if (inside) list += line + "\n";
    if (line.starts_with(kBegin)) inside = true;
  }
  const auto begin = list.find(" * device");
  const std::string expected = expected_list();
  ASSERT_NE(begin, std::string::npos) << "the header has no list of options. Expected:\n" << expected;
  EXPECT_EQ(list.substr(begin), expected) << "expected in the header:\n" << expected;
}

/// A value of an option that the table accepts is one that the engine accepts, unless it contradicts another option or
/// the number of ranks. So an invalid value is refused when it is set, and not when the engine is created.
TEST(OptionList, TheEngineAcceptsTheLimitsOfEachOption) {
  const std::pair<const char*, const char*> limits[] = {{"lr", "0"},
                                                        {"lr", "1e29"},
                                                        {"eps", "0"},
                                                        {"eps", "1e29"},
                                                        {"weight-decay", "0"},
                                                        {"weight-decay", "1e29"},
                                                        {"betas", "0,0"},
                                                        {"betas", "0.999999,0.999999"},
                                                        {"clip", "0"},
                                                        {"clip", "1e300"},
                                                        {"accumulate", "1048576"},
                                                        {"prefetch", "0"},
                                                        {"prefetch", "1048576"},
                                                        {"keep-gathered", "1048576"},
                                                        {"recompute", "2147483647"},
                                                        {"gather-for", "1048576"},
                                                        {"max-skipped", "2147483647"},
                                                        {"seed", "18446744073709551615"},
                                                        {"timeout", "0.001"},
                                                        {"timeout", "1e9"},
                                                        {"threads", "4096"}};
  for (const auto& [name, value] : limits) {
    Options options;
    ASSERT_NO_THROW(options.set(name, value)) << name << " " << value;
    if (std::string_view(name) == "timeout" || std::string_view(name) == "threads") continue;  // options of a world
    World::threads(
        1, [&](World& world) { EXPECT_NO_THROW(Engine(world, options.engine_options())) << name << " " << value; });
  }
}

TEST(OptionList, MomentumHasTheLimitsOfTheOptimizer) {
  for (const char* optimizer : {"sgd", "muon"}) {
    for (const char* value : {"0", "1"}) {
      Options options;
      options.set("optimizer", optimizer);
      try {
        options.set("momentum", value);
      } catch (const UsageError&) {
        continue;
      }
      World::threads(1, [&](World& world) {
        EXPECT_NO_THROW(Engine(world, options.engine_options())) << optimizer << " " << value;
      });
    }
  }
}

}  // namespace
}  // namespace aliquot::capi
