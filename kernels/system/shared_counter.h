#pragma once
// A number that threads or processes wait for.

#include <atomic>
#include <cstdint>

namespace aliquot {

/// Only grows; lies in memory that threads, or processes, share; zeroed memory is a valid one. Waiters spin briefly, then
/// sleep in the kernel, so more ranks than cores is not a problem.
class SharedCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(uint64_t value) const { return this->value() >= value; }

  /// What was written before is seen by whoever sees the value. One writer at a time.
  void raise_to(uint64_t value);

  /// Waits until it reached `value`, or `timeout_nanoseconds` are over, or somebody calls wake(). True if reached. A
  /// raise_to() that reaches it always ends the wait.
  bool wait(uint64_t value, int64_t timeout_nanoseconds) const;

  /// Makes those who sleep look again. One who is just about to sleep may miss it, since the value says nothing new: who
  /// waits for something besides the value, such as an abort, does so with a patience short enough to look by itself.
  void wake() const;

  /// How long waiters spin before they sleep. 0 suits more threads than cores. For the whole process.
  static void set_spin_nanoseconds(int64_t nanoseconds);

 private:
  std::atomic<uint64_t> value_{0};
  mutable std::atomic<uint32_t> has_sleepers_{0};  // who sets it may be awake again
};

}  // namespace aliquot
