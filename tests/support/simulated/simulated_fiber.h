#pragma once
// A second place at which one thread of the host runs: code that can be left in its midst and entered again. Told to the
// address and thread sanitizers.

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

  /// Runs the body, from its beginning or from where it left, until it leaves. Always from the same thread.
  void enter();
  /// Called by the body: enter() returns.
  void leave();

 private:
  /// The thread's own stack or the fiber's, as sanitizers know it.
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
  /// From one to the other, until somebody comes back.
  void switch_stacks(StackContext& from, StackContext& to);

  std::function<void()> body_;
  void* memory_;
  StackContext inside_, outside_;
};

}  // namespace aliquot
