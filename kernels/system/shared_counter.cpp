#include "kernels/system/shared_counter.h"

#include <chrono>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int64_t> spin_nanoseconds{5'000};

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void SharedCounter::set_spin_nanoseconds(int64_t nanoseconds) { spin_nanoseconds.store(nanoseconds); }

void SharedCounter::raise_to(uint64_t value) {
  // This thread stores the value and then reads the flag. A sleeper sets the flag and then reads the value. Sequential
  // consistency ensures that at least one of them sees the other's store.
  value_.store(value, std::memory_order_seq_cst);
  if (has_sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

// Clears the flag and wakes all sleepers, so that later calls make no system call while sleepers are still waking up.
// Sleepers sleep on the flag itself: if it is cleared after they read the value, FUTEX_WAIT returns at once.
void SharedCounter::wake() const {
  if (has_sleepers_.exchange(0, std::memory_order_seq_cst) != 0) futex(has_sleepers_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool SharedCounter::wait(uint64_t value, int64_t timeout_nanoseconds) const {
  if (reached(value)) return true;
  const int64_t start = now_nanoseconds();
  const int64_t spin_until = start + spin_nanoseconds.load(std::memory_order_relaxed);
  while (now_nanoseconds() < spin_until) {
    for (int i = 0; i < 16; ++i) {
      if (reached(value)) return true;
      pause_cpu();
    }
  }
  const int64_t left = start + timeout_nanoseconds - now_nanoseconds();
  if (left <= 0) return reached(value);
  has_sleepers_.store(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) < value) {
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    futex(has_sleepers_, FUTEX_WAIT, 1, &timeout);
  }
  return reached(value);
}

}  // namespace aliquot
