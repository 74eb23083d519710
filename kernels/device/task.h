#pragma once
// A task: a callable without heap allocation.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace aliquot {

/// A move-only callable that is stored in place, so that enqueuing work during a training step allocates nothing.
/// A callable larger than kCapacityBytes does not compile. Put its data in a struct that outlives it.
class Task {
 public:
  static constexpr std::size_t kCapacityBytes = 144;

  Task() = default;

  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Task>>>
  Task(F&& work) {  // NOLINT(google-explicit-constructor): a lambda is a task
    using Work = std::decay_t<F>;
    static_assert(sizeof(Work) <= kCapacityBytes, "the lambda captures more than a Task can hold");
    static_assert(alignof(Work) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Work>);
    new (storage_) Work(std::forward<F>(work));
    invoke_ = [](void* self) { (*static_cast<Work*>(self))(); };
    relocate_ = [](void* from, void* to) noexcept {
      auto* source = static_cast<Work*>(from);
      if (to != nullptr) new (to) Work(std::move(*source));
      source->~Work();
    };
  }

  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      clear();
      take(other);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { clear(); }

  explicit operator bool() const { return invoke_ != nullptr; }
  void operator()() { invoke_(storage_); }

 private:
  void clear() noexcept {
    if (relocate_ != nullptr) relocate_(storage_, nullptr);
    invoke_ = nullptr;
    relocate_ = nullptr;
  }

  void take(Task& other) noexcept {
    if (other.relocate_ != nullptr) other.relocate_(other.storage_, storage_);
    invoke_ = std::exchange(other.invoke_, nullptr);
    relocate_ = std::exchange(other.relocate_, nullptr);
  }

  alignas(std::max_align_t) std::byte storage_[kCapacityBytes];
  void (*invoke_)(void*) = nullptr;
  void (*relocate_)(void*, void*) noexcept = nullptr;
};

}  // namespace aliquot
#pragma GCC visibility pop
