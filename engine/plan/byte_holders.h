#pragma once
// Which of many holders has each byte of a memory.

#include <cstdint>
#include <map>

namespace aliquot {

/// Ranges of bytes with one holder each. The planner and the proof both walk a schedule with one; what they conclude from the
/// holders, each works out for itself.
class ByteHolders {
 public:
  /// Calls visit(holder) for each range of one holder that has a byte of [begin, end), in order, then lets `holder` have them all.
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
  /// No range lies on both sides of `at`.
  void cut(int64_t at) {
    auto it = held_.upper_bound(at);
    if (it == held_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    const Held upper = it->second;
    it->second.end = at;
    held_.emplace(at, upper);
  }
  std::map<int64_t, Held> held_;  // by their first byte
};

}  // namespace aliquot
