#pragma once
// The threads one rank computes with.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace aliquot {

/// Splits loops over elements between a fixed number of threads. Cuts fall on multiples of a grain that the caller names
/// and never change a result: loops either treat elements alone or sum within a grain.
class ThreadPool {
 public:
  /// `thread_count` includes the thread that calls; 1 makes no thread at all. Throws UnavailableError, having ended those
  /// that it made, when the system gives fewer.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return thread_count_; }

  /// Calls body(begin, end) for ranges that tile [0, count), their inner edges multiples of `grain`, on all threads and
  /// returns when all are done. Runs on the caller alone when the loop is small or the pool is busy. Rethrows the first
  /// exception of a body.
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
