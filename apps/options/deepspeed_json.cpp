#include "apps/options/deepspeed_json.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "apps/options/deepspeed_keys.h"
#include "apps/options/settings_file.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

const DeepspeedKey* find_key(const std::string& path) {
  const auto keys = deepspeed_keys();
  const auto found = std::ranges::find(keys, path, &DeepspeedKey::path);
  return found == keys.end() ? nullptr : &*found;
}

bool is_block(const std::string& path) {
  return std::ranges::any_of(deepspeed_keys(),
                             [&](const DeepspeedKey& key) { return key.path.starts_with(path + "."); });
}

/// What may stand where `path` does: the names that known keys have there.
std::vector<std::string> sibling_keys(const std::string& path) {
  const size_t dot = path.rfind('.');
  const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot + 1);
  std::set<std::string> names;
  for (const DeepspeedKey& key : deepspeed_keys()) {
    if (!key.path.starts_with(parent)) continue;
    const std::string_view rest = key.path.substr(parent.size());
    names.emplace(rest.substr(0, rest.find('.')));
  }
  return {names.begin(), names.end()};
}

class JsonFlattener {
 public:
  explicit JsonFlattener(DeepspeedFile& file) : file_(file) {}

  void take(const std::string& path, const Json& value) {
    const DeepspeedKey* key = find_key(path);
    const bool off = value.is_null() && !path.empty();
    if (key != nullptr && key->handling == KeyHandling::kIgnored && !(value.is_object() && is_block(path))) {
      file_.ignored_keys.push_back(path);
    } else if (value.is_object() && (path.empty() || is_block(path))) {
      for (const auto& [name, below] : value.items()) take(path.empty() ? name : path + "." + name, below);
    } else if (key != nullptr) {
      if (!off) file_.values[path] = value;
    } else if (path == "zero_optimization" && value.is_boolean()) {  // as it was written once
      file_.values["zero_optimization.stage"] = value.get<bool>() ? 1 : 0;
    } else if (is_block(path)) {
      if (!off) refuse(path, "this is to be an object, {...}");
    } else if (in_ignored_block(path)) {
      file_.ignored_keys.push_back(path);
    } else {
      const std::string name = path.substr(path.rfind('.') + 1);
      refuse(path, "the key is unknown." + did_you_mean(name, sibling_keys(path), "") +
                       " Leave it out if it has no part in the training");
    }
  }

 private:
  /// Beside a key that says that all of it is off.
  static bool in_ignored_block(const std::string& path) {
    const DeepspeedKey* block = find_key(path.substr(0, path.find('.')));
    return block != nullptr && block->handling == KeyHandling::kIgnored;
  }
  [[noreturn]] void refuse(const std::string& path, const std::string& why) const {
    throw UsageError(fmt::format("--deepspeed {}: {}: {}.", file_.path, path, why));
  }

  DeepspeedFile& file_;
};

/// DeepSpeed refuses a key that stands twice; the parser would take the last.
class TwiceFinder {
 public:
  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) seen_.emplace_back();
    if (event == Json::parse_event_t::object_end) seen_.pop_back();
    if (event == Json::parse_event_t::key && !seen_.back().insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return true;
  }
  std::string twice;

 private:
  std::vector<std::set<std::string>> seen_;
};

}  // namespace

DeepspeedFile read_deepspeed_file(const std::string& path) {
  const std::string text = read_settings_file("--deepspeed", path);
  if (text.empty()) throw UsageError("--deepspeed " + path + ": the file is empty.");
  TwiceFinder twice;
  Json json;
  try {
    json = Json::parse(text, std::ref(twice), true, true);
  } catch (const Json::parse_error& error) {
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(std::min(error.byte, text.size())), '\n');
    throw UsageError(
        fmt::format("--deepspeed {}:{}: this is no JSON; see that quotes, commas and braces match.", path, line + 1));
  } catch (const Json::out_of_range&) {
    throw UsageError("--deepspeed " + path + ": it has a number that is larger than any double.");
  }
  if (!json.is_object()) throw UsageError("--deepspeed " + path + ": the file is no JSON object.");
  if (!twice.twice.empty())
    throw UsageError(fmt::format("--deepspeed {}: {} stands there twice: leave one out.", path, twice.twice));
  DeepspeedFile file{path, {}, {}};
  JsonFlattener(file).take("", json);
  return file;
}

}  // namespace aliquot
