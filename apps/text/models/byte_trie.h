#pragma once
// A set of byte strings, each with an integer, that finds the strings at a position of a text.

#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/text/models/flat_map.h"

namespace aliquot {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;

  ByteTrie() : values_(1, kNone) {}

  /// Adds `text`, which must not be empty. Replaces the value if `text` is already in the trie.
  void insert(std::string_view text, int32_t value) {
    uint32_t node = 0;
    for (const char byte : text) {
      if (const uint64_t* next = edges_.find(edge(node, byte))) {
        node = static_cast<uint32_t>(*next);
        continue;
      }
      const auto added = static_cast<uint32_t>(values_.size());
      values_.push_back(kNone);
      edges_.insert_or_assign(edge(node, byte), added);
      node = added;
    }
    values_[node] = value;
  }

  bool is_empty() const { return values_.size() == 1; }

  /// Calls found(length, value) for each string that `text` begins with, the shortest first.
  template <typename Found>
  void for_prefixes(std::string_view text, Found&& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint64_t* next = edges_.find(edge(node, text[i]));
      if (next == nullptr) return;
      node = static_cast<uint32_t>(*next);
      if (values_[node] != kNone) found(i + 1, values_[node]);
    }
  }

 private:
  static uint64_t edge(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<unsigned char>(byte); }

  FlatMap edges_;
  std::vector<int32_t> values_;  // of each node; node 0 is the root
};

}  // namespace aliquot
