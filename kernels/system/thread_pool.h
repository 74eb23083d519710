#pragma once
// The compute threads of one rank.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace aliquot {

/// Splits loops over elements among a fixed number of threads. The caller chooses a grain, and the loop is divided only
/// at multiples of it. If no sum of the loop spans several grains, the result does not depend on the number of threads.
class ThreadPool {
 public:
  /// `thread_count` includes the calling thread; with 1 no thread is started. Throws UnavailableError if a thread
  /// cannot be started.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return thread_count_; }

  /// Calls body(begin, end) on all threads for ranges that cover [0, count), and returns when all have finished. Inner
  /// boundaries are multiples of `grain`. If the loop is small or the pool is busy, the calling thread runs it alone.
  /// Rethrows the first exception of a body.
  template <typename Body>
  void for_ranges(int64_t count, int64_t grain, Body&& body) {
    if (thread_count_ == 1 || count <= grain * kSmallGrains) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  static constexpr int64_t kSmallGrains = 16;
  struct Workers;
  void run(int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);

  int thread_count_;
  std::unique_ptr<Workers> workers_;  // null with one thread
};

}  // namespace aliquot
