#pragma once
// Waiting for something outside a stream: another rank, a file, a clock.

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace aliquot {

/// A condition that a host stream waits for, held in place without allocation. The condition is a small trivially copyable
/// object with two functions that agree:
///   bool open()   true if it holds; never blocks; throws when it can no longer come true (a deadline, an abort).
///   void block()  returns when open() would be true, having slept rather than spun for long; throws as open() does.
/// A worker blocks; a device that reorders work asks open() and comes back later.
class Gate {
 public:
  static constexpr std::size_t kCapacityBytes = 112;

  template <typename Condition>
  explicit Gate(const Condition& condition) {
    static_assert(std::is_trivially_copyable_v<Condition> && sizeof(Condition) <= kCapacityBytes);
    std::memcpy(storage_, &condition, sizeof(Condition));
    open_ = [](void* self) { return static_cast<Condition*>(self)->open(); };
    block_ = [](void* self) { static_cast<Condition*>(self)->block(); };
  }

  bool open() { return open_(storage_); }
  void block() { block_(storage_); }

 private:
  alignas(std::max_align_t) std::byte storage_[kCapacityBytes];
  bool (*open_)(void*);
  void (*block_)(void*);
};

/// True on a worker whose stream is being destroyed because its owner is unwinding: a condition that blocks should look
/// now and then, and throw WorkCancelled.
bool work_cancelled() noexcept;

struct WorkCancelled {};

}  // namespace aliquot
