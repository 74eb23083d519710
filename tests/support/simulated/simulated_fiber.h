#pragma once
// A coroutine with its own stack, whose body can be suspended and resumed. Reports stack switches to AddressSanitizer
// and ThreadSanitizer.

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

  /// Runs the body until it calls leave(). The body starts at its beginning, or continues after its last leave().
  /// Always call enter() from the same thread.
  void enter();
  /// Suspends the body, so that enter() returns. Only the body may call it.
  void leave();

 private:
  /// The stack of the thread or of the fiber, and its sanitizer state.
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
