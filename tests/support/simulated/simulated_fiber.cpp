// With _FORTIFY_SOURCE, the C library reports a jump to another stack as an error.
#undef _FORTIFY_SOURCE
#include "tests/support/simulated/simulated_fiber.h"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace aliquot {
namespace {

// The first pages of a stack are inaccessible, so a stack overflow faults.
constexpr std::size_t kGuardBytes = 64 << 10, kStackBytes = 256 << 10;

void* allocate_stack() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
  return memory;
}

void before_switch([[maybe_unused]] void*& address_state, [[maybe_unused]] const void* bottom,
                   [[maybe_unused]] std::size_t size_bytes, [[maybe_unused]] void* thread_state) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&address_state, bottom, size_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread_state, 0);
#endif
}

/// Ends the switch and stores the bounds of the previous stack.
void after_switch([[maybe_unused]] void* address_state, [[maybe_unused]] const void*& bottom,
                  [[maybe_unused]] std::size_t& size_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(address_state, &bottom, &size_bytes);
#endif
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), memory_(allocate_stack()) {
  inside_.bottom = static_cast<std::byte*>(memory_) + kGuardBytes;
  inside_.size_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
  inside_.thread_state = __tsan_create_fiber(0);
  outside_.thread_state = __tsan_get_current_fiber();
#endif
  getcontext(&inside_.context);
  inside_.context.uc_stack.ss_sp = const_cast<void*>(inside_.bottom);
  inside_.context.uc_stack.ss_size = kStackBytes;
  const auto self = reinterpret_cast<uintptr_t>(this);  // makecontext() can pass only ints
  makecontext(&inside_.context, reinterpret_cast<void (*)()>(&Fiber::begin), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(inside_.thread_state);
#endif
#if defined(__SANITIZE_ADDRESS__)
  // The body never returned, so its frames are still poisoned, and the addresses may be used again.
  __asan_unpoison_memory_region(inside_.bottom, kStackBytes);
#endif
  munmap(memory_, kGuardBytes + kStackBytes);
}

void Fiber::begin(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
  after_switch(nullptr, self->outside_.bottom, self->outside_.size_bytes);
  self->body_();
  std::abort();
}

void Fiber::enter() { switch_stacks(outside_, inside_); }

void Fiber::leave() { switch_stacks(inside_, outside_); }

void Fiber::switch_stacks(StackContext& from, StackContext& to) {
  before_switch(from.address_state, to.bottom, to.size_bytes, to.thread_state);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  swapcontext(&from.context, &to.context);
#else
  // Avoids the system calls for the signal mask, which take most of the time of swapcontext().
  from.has_left = true;
  if (_setjmp(from.left) == 0) {
    if (to.has_left) _longjmp(to.left, 1);
    setcontext(&to.context);
  }
#endif
  after_switch(from.address_state, to.bottom, to.size_bytes);
}

}  // namespace aliquot
