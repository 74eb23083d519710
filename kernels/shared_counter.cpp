#include "kernels/shared_counter.h"

#include <bit>
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

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The kernel compares 32 bits: the low half of the number, which changes with every step.
uint32_t* futex_word(const std::atomic<uint64_t>& value) {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  auto* words = reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint64_t>*>(&value));
  return words + (std::endian::native == std::endian::little ? 0 : 1);
}

}  // namespace

void SharedCounter::set_spin_nanoseconds(int64_t nanoseconds) { spin_nanoseconds.store(nanoseconds); }

void SharedCounter::raise_to(uint64_t value) {
  // Store then look for sleepers; a sleeper counts itself then looks at the value. Sequential consistency on both sides
  // makes it impossible for both to see the old state.
  value_.store(value, std::memory_order_seq_cst);
  if (sleeper_count_.load(std::memory_order_seq_cst) != 0) wake();
}

void SharedCounter::wake() const { syscall(SYS_futex, futex_word(value_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool SharedCounter::wait(uint64_t value, int64_t patience_nanoseconds) const {
  if (reached(value)) return true;
  const int64_t start = now_nanoseconds();
  const int64_t spin_until = start + spin_nanoseconds.load(std::memory_order_relaxed);
  while (now_nanoseconds() < spin_until) {
    for (int i = 0; i < 16; ++i) {
      if (reached(value)) return true;
      relax();
    }
  }
  const int64_t left = start + patience_nanoseconds - now_nanoseconds();
  if (left <= 0) return reached(value);
  sleeper_count_.fetch_add(1, std::memory_order_seq_cst);
  const uint64_t seen = value_.load(std::memory_order_seq_cst);
  if (seen < value) {
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    syscall(SYS_futex, futex_word(value_), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr, 0);
  }
  sleeper_count_.fetch_sub(1, std::memory_order_seq_cst);
  return reached(value);
}

}  // namespace aliquot
