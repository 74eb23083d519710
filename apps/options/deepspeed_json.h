#pragma once
// A DeepSpeed configuration as a flat list of what it says.

#include <map>
#include <string>
#include <vector>

#include "apps/options/arguments.h"

namespace aliquot {

/// What a file says: values by dotted path, each of a known key, and the keys that have no meaning here. Keys whose value
/// is null are left out: DeepSpeed takes them for absent.
struct DeepspeedFile {
  std::string path;
  std::map<std::string, Json> values;
  std::vector<std::string> ignored_keys;
};

/// Throws UsageError, naming the file and the key, for a file that cannot be read or is no JSON object, a key that stands
/// twice, and a key that is not known.
DeepspeedFile read_deepspeed_file(const std::string& path);

}  // namespace aliquot
