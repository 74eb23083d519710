#pragma once
// Detects that all threads of a group of ranks wait for one another.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "kernels/system/shared_counter.h"

namespace aliquot {

/// The threads of ranks that are threads of this process: for each rank its own thread and the workers of its streams.
/// Only these threads may end one another's waits. A thread counts as running unless it waits with a DeadlockWatch, or
/// is a worker without tasks.
class RankThreads {
 public:
  /// One of the threads. Only RankThreads uses its members.
  struct Entry {
    RankThreads* threads;
    int rank;
    const SharedCounter *submitted, *completed;  // the tasks of a worker; null for the own thread of a rank
    uint64_t number = 0;                         // the key in entries_
    bool waits = false;
    int checks = 0;  // of the condition of the wait, since the threads were last seen to change
    std::function<std::string()> describe = {};
  };

  explicit RankThreads(int rank_count) : absent_(rank_count) {}
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// While this object exists, the calling thread is the own thread of `rank`. A rank whose own thread has not joined,
  /// or has left, counts as running. A null `threads` has no effect. `threads` must outlive the object.
  class Own {
   public:
    Own(RankThreads* threads, int rank);
    ~Own();
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;

   private:
    RankThreads* threads_;
    Entry* before_ = nullptr;  // the thread may already be a rank of another world
  };

  /// A worker of the rank whose own thread constructs this object. `submitted` and `completed` count its tasks. Has no
  /// effect in a thread without a rank.
  class Worker {
   public:
    Worker(const SharedCounter& submitted, const SharedCounter& completed);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    /// The worker thread calls this function first.
    void enter() const;

   private:
    Entry* entry_;
  };

 private:
  friend class DeadlockWatch;
  Entry& add(Entry entry);
  void erase(const Entry* entry);
  void begin(Entry& own, std::function<std::string()> describe);
  void end(Entry& own);
  std::string check(Entry& own);
  bool all_wait(uint64_t& tasks) const;
  std::string text() const;

  std::mutex mutex_;
  int absent_;           // number of ranks without an Own object
  int running_ = 0;      // number of own threads of ranks that have an Own object and do not wait
  uint64_t number_ = 0;  // the largest key of entries_ so far
  std::map<uint64_t, Entry> entries_;
  uint64_t changes_ = 0;                        // the number of waits that began or ended
  uint64_t seen_changes_ = 0, seen_tasks_ = 0;  // at the last check
};

/// A wait of the calling thread for other threads. Costs nothing until poll() is called, which a short wait does not.
class DeadlockWatch {
 public:
  DeadlockWatch() = default;
  ~DeadlockWatch();
  DeadlockWatch(const DeadlockWatch&) = delete;
  DeadlockWatch& operator=(const DeadlockWatch&) = delete;

  /// Call repeatedly, each time after the condition of the wait was false. Returns a message if no thread of any rank
  /// can ever continue, and otherwise "". `describe` returns a text such as "barrier #2". It is called later, on any of
  /// the threads, while this object exists. It must not wait or lock. An empty text is left out of the message.
  template <typename Describe>
  std::string poll(const Describe& describe) {
    if (entry_ == nullptr && !begin(describe)) return {};
    return entry_->threads->check(*entry_);
  }

 private:
  bool begin(std::function<std::string()> describe);

  RankThreads::Entry* entry_ = nullptr;
};

}  // namespace aliquot
