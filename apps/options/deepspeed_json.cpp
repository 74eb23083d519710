#include "apps/options/deepspeed_json.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/options/deepspeed_keys.h"
#include "apps/options/settings_json.h"
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

/// The names of the known keys in the block that contains `path`.
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

  void flatten(const std::string& path, const Json& value) {
    const DeepspeedKey* key = find_key(path);
    const bool is_absent = value.is_null() && !path.empty();
    if (key != nullptr && key->handling == KeyHandling::kIgnored && !(value.is_object() && is_block(path))) {
      file_.ignored_keys.push_back(path);
    } else if (value.is_object() && (path.empty() || is_block(path))) {
      for (const auto& [name, below] : value.items()) flatten(path.empty() ? name : path + "." + name, below);
    } else if (key != nullptr) {
      if (!is_absent) file_.values[path] = value;
    } else if (path == "zero_optimization" && value.is_boolean()) {  // the format of old DeepSpeed versions
      file_.values["zero_optimization.stage"] = value.get<bool>() ? 1 : 0;
    } else if (is_block(path)) {
      if (!is_absent) refuse(path, "invalid value " + value_text(value) + ": expected an object, {...}");
    } else if (in_ignored_block(path)) {
      file_.ignored_keys.push_back(path);
    } else {
      const std::string name = path.substr(path.rfind('.') + 1);
      refuse(path, "unknown key." + did_you_mean(name, sibling_keys(path), "") +
                       " Leave it out if it does not affect training");
    }
  }

 private:
  /// Whether the top-level block that contains `path` is ignored.
  static bool in_ignored_block(const std::string& path) {
    const DeepspeedKey* block = find_key(path.substr(0, path.find('.')));
    return block != nullptr && block->handling == KeyHandling::kIgnored;
  }
  [[noreturn]] void refuse(const std::string& path, const std::string& why) const {
    throw UsageError(fmt::format("--deepspeed {}: {}: {}.", file_.path, path, why));
  }

  DeepspeedFile& file_;
};

}  // namespace

DeepspeedFile read_deepspeed_file(const std::string& path) {
  const Json json = read_settings_json("--deepspeed", path);
  DeepspeedFile file{path, {}, {}};
  JsonFlattener(file).flatten("", json);
  return file;
}

}  // namespace aliquot
