#pragma once
// A coroutine with its own stack: its body can leave and be resumed. Reports its stack switches to AddressSanitizer and
// ThreadSanitizer.

#include <csetjmp>
#include <cstddef>
#include <functional>
#include <ucontext.h>

namespace aliquot {

class Fiber {
 public:
  /// `body` must never return.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body, from its begin or from its last leave(), until it calls leave(). Always call it from the same
  /// thread.
  void enter();
  /// Returns from enter(). Only the body calls it.
  void leave();

 private:
  /// A stack and its sanitizer state, for the thread or the fiber.
  struct StackContext {
    ucontext_t context{};
    jmp_buf left{};
    bool has_left = false;
    const void* bottom = nullptr;
    std::size_t size_bytes = 0;
    void* address_state = nullptr;
    void* thread_state = nullptr;
  };
  static void begin(unsigned high, unsigned low);
  /// Switches from one stack to the other. Returns when another call switches back.
  void switch_stacks(StackContext& from, StackContext& to);

  std::function<void()> body_;
  void* memory_;
  StackContext inside_, outside_;
};

}  // namespace aliquot
