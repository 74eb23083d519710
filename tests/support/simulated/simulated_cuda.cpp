#include "tests/support/simulated/simulated_cuda.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#ifndef SIMULATED_GPUS
#error "define SIMULATED_GPUS as the number of simulated GPUs"
#endif

namespace {

constexpr std::size_t kGpuBytes = std::size_t{1} << 32;

/// One recording of an event.
struct EventRecord {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;

  void pass() {
    const std::lock_guard lock(mutex);
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};

void sleep_randomly() {
  thread_local std::minstd_rand random(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
}

thread_local int current_gpu = 0;
std::atomic<unsigned long long> stream_count{0};

}  // namespace

struct CUevent_st {
  int gpu;
  std::mutex mutex;
  std::shared_ptr<EventRecord> event_record;

  std::shared_ptr<EventRecord> get() {
    const std::lock_guard lock(mutex);
    return event_record;
  }
};

struct CUstream_st {
  int gpu = 0;
  unsigned long long number = ++stream_count;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false, stopping = false;
  std::atomic<bool> faulted{false};
  std::thread worker;

  CUstream_st() : worker([this] { work(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      changed.notify_all();
    }
    worker.join();
  }

  void enqueue(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(task));
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !queue.empty() || stopping; });
      if (queue.empty()) return;
      const auto task = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      sleep_randomly();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

namespace aliquot::simulated {

void launch(cudaStream_t stream, std::function<void()> work) { stream->enqueue(std::move(work)); }

void fault(cudaStream_t stream) { stream->faulted = true; }

}  // namespace aliquot::simulated

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = SIMULATED_GPUS;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= SIMULATED_GPUS) return cudaErrorInvalidDevice;
  current_gpu = gpu;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::snprintf(properties->name, sizeof(properties->name), "simulated");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int capacity, int gpu) {
  std::snprintf(bus, static_cast<std::size_t>(capacity), "0000:%02x:00.0", static_cast<unsigned>(gpu));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int, int) {
  *possible = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = kGpuBytes;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "error of the simulated CUDA runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "simulated"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void** data, std::size_t size_bytes) {
  if (size_bytes > kGpuBytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(512, (size_bytes + 511) / 512 * 512);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t size_bytes, unsigned) { return cudaMalloc(data, size_bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind, cudaStream_t stream) {
  stream->enqueue([=] { std::memcpy(to, from, size_bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t size_bytes, cudaStream_t stream) {
  stream->enqueue([=] { std::memset(to, value, size_bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st;
  (*stream)->gpu = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* number) {
  *number = stream->number;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->faulted) return cudaErrorLaunchFailure;
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->wait();
  return stream->faulted ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* argument) {
  // The CUDA driver may run the host functions of all streams on one thread. With this mutex, a host function that
  // waits for a host function of another stream deadlocks here as well.
  static std::mutex one_thread;
  stream->enqueue([=] {
    if (stream->faulted) return;
    const std::lock_guard lock(one_thread);
    work(argument);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st{current_gpu, {}, {}};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->gpu != stream->gpu) return cudaErrorInvalidResourceHandle;
  auto event_record = std::make_shared<EventRecord>();
  {
    const std::lock_guard lock(event->mutex);
    event->event_record = event_record;
  }
  stream->enqueue([event_record] { event_record->pass(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto event_record = event->get();
  if (event_record != nullptr) stream->enqueue([event_record] { event_record->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto event_record = event->get();
  if (event_record == nullptr) return cudaSuccess;
  const std::lock_guard lock(event_record->mutex);
  return event_record->passed ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"
