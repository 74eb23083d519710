#pragma once
// A map from ranges of bytes to the buffers that last occupied them.

#include <cstdint>
#include <map>

namespace aliquot {

/// Disjoint byte ranges, each with one holder. The planner and the validator both use it to track which buffer last
/// occupied a byte. They share only this map, so that the validator stays independent of the planner.
class ByteHolders {
 public:
  /// Calls visit(holder), in order, for each range that overlaps [begin, end). Then assigns [begin, end) to `holder`.
  template <typename Visit>
  void assign(int64_t begin, int64_t end, int32_t holder, Visit visit) {
    cut(begin);
    cut(end);
    auto it = held_.lower_bound(begin);
    for (; it != held_.end() && it->first < end; it = held_.erase(it)) visit(it->second.holder);
    held_.emplace_hint(it, begin, Held{end, holder});
  }

 private:
  struct Held {
    int64_t end;
    int32_t holder;
  };
  /// Splits the range that contains `at`, if there is one, so that a range begins at `at`.
  void cut(int64_t at) {
    auto it = held_.upper_bound(at);
    if (it == held_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    const Held upper = it->second;
    it->second.end = at;
    held_.emplace(at, upper);
  }
  std::map<int64_t, Held> held_;  // key: first byte of the range
};

}  // namespace aliquot
