#pragma once
// A counter that threads or processes can wait for.

#include <atomic>
#include <cstdint>

namespace aliquot {

/// A counter that only grows, in memory that threads or processes share. Zeroed memory is a valid counter. Waiters spin
/// briefly and then sleep in the kernel, so there may be more ranks than cores.
class SharedCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(uint64_t value) const { return this->value() >= value; }

  /// Sets the value, with release semantics: a thread that sees it also sees earlier writes. One writer at a time.
  void raise_to(uint64_t value);

  /// Waits until the counter reaches `value`, the timeout expires or wake() is called. Returns true if it has reached
  /// `value`. A raise_to() to at least `value` always ends the wait.
  bool wait(uint64_t value, int64_t timeout_nanoseconds) const;

  /// Wakes all sleeping waiters. A waiter that is about to sleep may miss the call. Therefore a waiter that also checks
  /// another condition, such as an abort, needs a short timeout.
  void wake() const;

  /// Sets how long the waiters of this process spin before they sleep. Use 0 if there are more threads than cores.
  static void set_spin_nanoseconds(int64_t nanoseconds);

 private:
  std::atomic<uint64_t> value_{0};
  mutable std::atomic<uint32_t> has_sleepers_{0};  // may stay 1 after the last sleeper timed out
};

}  // namespace aliquot
