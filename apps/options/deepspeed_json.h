#pragma once
// Reads a DeepSpeed configuration into a flat map.

#include <map>
#include <string>
#include <vector>

#include "apps/options/arguments.h"

namespace aliquot {

/// The content of a file: the values of known keys by dotted path, and the keys that have no effect in Aliquot. Keys
/// with the value null are left out, because DeepSpeed treats them as absent.
struct DeepspeedFile {
  std::string path;
  std::map<std::string, Json> values;
  std::vector<std::string> ignored_keys;
};

/// Throws UsageError, naming the file and the key, if the file cannot be read or is not a JSON object, or if a key is
/// duplicate or unknown.
DeepspeedFile read_deepspeed_file(const std::string& path);

}  // namespace aliquot
