#pragma once
// A condition for which a stream waits, other than an event: the progress of another rank, a file or a clock.

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace aliquot {

/// A condition that a host stream waits for. It is stored in the gate without a heap allocation. The condition is a
/// small trivially copyable object with two functions:
///   bool open()   returns whether the condition holds. Never blocks. Throws if the condition can no longer become
///                 true, such as after a deadline or an abort.
///   void block()  returns once open() would return true. Sleeps if the wait is long. Throws like open().
/// Worker threads call block(). The device that reorders work in tests calls open() repeatedly.
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

/// Returns true on a worker thread whose stream is being destroyed during stack unwinding. block() must call this
/// function regularly, and throw WorkCancelled if it returns true.
bool work_cancelled() noexcept;

struct WorkCancelled {};

}  // namespace aliquot
