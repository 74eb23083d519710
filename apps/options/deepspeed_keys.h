#pragma once
// Every key of a DeepSpeed configuration that is known here, and what becomes of it.

#include <span>
#include <string_view>

namespace aliquot {

enum class KeyHandling : uint8_t {
  kMapped,   // an option of ours, as it stands
  kRead,     // together with its neighbours
  kFixed,    // one value is what is done here anyway; any other would change the training, and is refused
  kIgnored,  // tunes or shows something that is not there here; so does all below it
};

struct DeepspeedKey {
  std::string_view path;  // with dots
  KeyHandling handling;
  std::string_view what = {};     // kMapped: the option; kFixed: the value
  std::string_view omitted = {};  // kMapped: what a file without the key means; empty: what we mean too
};

/// In the order in which they are taken.
std::span<const DeepspeedKey> deepspeed_keys();

}  // namespace aliquot
