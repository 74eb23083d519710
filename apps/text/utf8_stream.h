#pragma once
// Cuts a stream of bytes at the boundaries of UTF-8 characters.

#include <string>
#include <string_view>

namespace aliquot {

/// Receives bytes and returns whole characters: it keeps the bytes of an incomplete character until the last of them
/// arrives. Replaces bytes that are not valid UTF-8 by U+FFFD.
class Utf8Stream {
 public:
  /// Returns the characters that are complete now.
  std::string append(std::string_view bytes);
  /// Returns U+FFFD if the last character is incomplete.
  std::string finish();

 private:
  std::string pending_;  // the bytes of an incomplete character
};

}  // namespace aliquot
