#pragma once
// Streams and events of the simulated CUDA runtime. simulated_graph.cpp captures their work.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace aliquot::simulated {

/// Prints the error and ends the program.
[[noreturn]] void fail(const char* error);

/// One recording of an event.
struct EventRecord {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  std::chrono::steady_clock::time_point time;

  void pass() {
    const std::lock_guard lock(mutex);
    passed = true;
    time = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};

/// A part of memory that a copy reads or writes.
struct MemoryRange {
  const std::byte* begin = nullptr;
  std::size_t size_bytes = 0;

  bool overlaps(const MemoryRange& other) const {
    return begin < other.begin + other.size_bytes && other.begin < begin + size_bytes;
  }
};
using MemoryRanges = std::array<MemoryRange, 2>;

/// Work of a stream. The first function is called when the work is enqueued: in the call that enqueues it or, for
/// captured work, in each launch of the graph. It returns the function that runs in the stream.
using Preparation = std::function<std::function<void()>()>;

struct Capture;

/// The recording of an event in a capturing stream.
struct CapturedRecord {
  bool exists = false;
  std::weak_ptr<Capture> capture;
  std::size_t record = 0;  // its number among the recordings of the capture
};

/// Sleeps now and then, so that streams run in different orders.
void sleep_randomly();

}  // namespace aliquot::simulated

struct CUevent_st {
  int gpu = 0;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<aliquot::simulated::EventRecord> event_record;
  aliquot::simulated::CapturedRecord captured;  // of the last recording, if a stream captured it

  std::shared_ptr<aliquot::simulated::EventRecord> get() {
    const std::lock_guard lock(mutex);
    return event_record;
  }
  /// Replaces the last recording by one that passes when the result does.
  std::shared_ptr<aliquot::simulated::EventRecord> renew() {
    const std::lock_guard lock(mutex);
    captured = {};
    return event_record = std::make_shared<aliquot::simulated::EventRecord>();
  }
};

struct CUstream_st {
  explicit CUstream_st(int gpu);
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  const int gpu;
  const unsigned long long number;
  std::atomic<bool> faulted{false};
  const std::thread::id creator = std::this_thread::get_id();
  std::shared_ptr<aliquot::simulated::Capture> capture;  // null unless the stream captures its work

  void enqueue(std::function<void()> work, const aliquot::simulated::MemoryRanges& uses = {});
  bool idle();
  bool uses(const aliquot::simulated::MemoryRange& memory);
  void wait();

 private:
  struct Task {
    std::function<void()> work;
    aliquot::simulated::MemoryRanges uses;
  };
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;  // the first one may be running
  bool stopping_ = false;
  std::thread worker_;
};

namespace aliquot::simulated {

/// Enqueues work, or adds it to the capture of the stream.
void enqueue(cudaStream_t stream, Preparation prepare, const MemoryRanges& uses = {});

/// Whether the calling thread captures work. CUDA then refuses calls that could wait for the GPU.
bool this_thread_captures();
/// Makes the capture of the stream invalid, if it has one. Returns the error.
cudaError_t refused_in_capture(cudaStream_t stream);

/// The parts of cudaEventRecord() and cudaStreamWaitEvent() that concern captures. Return false if neither the stream
/// nor the event has to do with a capture.
bool record_captured(CUevent_st& event, cudaStream_t stream);
bool wait_captured(CUevent_st& event, cudaStream_t stream, cudaError_t& result);

}  // namespace aliquot::simulated
