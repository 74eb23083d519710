#pragma once
// Maps from strings that can be searched by a std::string_view.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace aliquot {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

/// The tokens of a model by their text.
using TokenMap = StringMap<int32_t>;

inline std::optional<int32_t> find_token(const TokenMap& tokens, std::string_view text) {
  const auto found = tokens.find(text);
  return found == tokens.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace aliquot
