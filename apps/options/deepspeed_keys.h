#pragma once
// Every key of a DeepSpeed configuration that is known here, and what becomes of it.

#include <span>
#include <string_view>

namespace aliquot {

enum class KeyFate : uint8_t {
  kSets,     // an option of ours, as it stands
  kRead,     // together with its neighbours
  kOnly,     // one value is what is done here anyway; any other would change the training, and is refused
  kNothing,  // tunes or shows something that is not there here; so does all below it
};

struct DeepspeedKey {
  std::string_view path;  // with dots
  KeyFate fate;
  std::string_view what = {};     // kSets: the option; kOnly: the value
  std::string_view omitted = {};  // kSets: what a file without the key means; empty: what we mean too
};

/// In the order in which they are taken.
std::span<const DeepspeedKey> deepspeed_keys();

}  // namespace aliquot
