#pragma once
// The known keys of DeepSpeed configurations, and how Aliquot treats each.

#include <span>
#include <string_view>

namespace aliquot {

enum class KeyHandling : uint8_t {
  kMapped,   // sets one option of Aliquot to the same value
  kRead,     // DeepspeedTranslator reads it together with related keys
  kFixed,    // only one value is supported; others are rejected, because they would change training
  kIgnored,  // the key and all keys nested in it have no effect in Aliquot
};

struct DeepspeedKey {
  std::string_view path;  // names of nested keys, joined by dots
  KeyHandling handling;
  std::string_view what = {};     // kMapped: the option; kFixed: the supported value
  std::string_view omitted = {};  // kMapped: DeepSpeed's default; empty: Aliquot has the same default
};

/// All keys, in the order in which they are translated.
std::span<const DeepspeedKey> deepspeed_keys();

}  // namespace aliquot
