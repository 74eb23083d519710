#include "tests/support/simulated/simulated_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/simulated/simulated_stream_cuda.h"

#ifndef SIMULATED_GPUS
#error "define SIMULATED_GPUS as the number of simulated GPUs"
#endif

using aliquot::simulated::enqueue;
using aliquot::simulated::fail;
using aliquot::simulated::MemoryRange;
using aliquot::simulated::record_captured;
using aliquot::simulated::refused_in_capture;
using aliquot::simulated::this_thread_captures;
using aliquot::simulated::wait_captured;

namespace {

constexpr std::size_t kGpuBytes = std::size_t{1} << 32;

thread_local int current_gpu = 0;

/// All streams and allocations of the process.
class Registry {
 public:
  cudaStream_t add(std::shared_ptr<CUstream_st> stream) {
    const std::lock_guard lock(mutex_);
    return streams_.emplace_back(std::move(stream)).get();
  }
  /// Returns null if the stream does not exist.
  std::shared_ptr<CUstream_st> remove(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(streams_, stream, &std::shared_ptr<CUstream_st>::get);
    if (found == streams_.end()) return nullptr;
    auto removed = std::move(*found);
    streams_.erase(found);
    return removed;
  }
  std::vector<std::shared_ptr<CUstream_st>> streams() {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  void add_memory(const void* data, std::size_t size_bytes, int gpu) {
    const std::lock_guard lock(mutex_);
    allocations_[data] = {size_bytes, gpu};
  }
  /// Returns the size of all allocations of the GPU.
  std::size_t allocated_bytes(int gpu) {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& [data, allocation] : allocations_) bytes += allocation.gpu == gpu ? allocation.size_bytes : 0;
    return bytes;
  }
  /// Returns the size of the allocation.
  std::size_t remove_memory(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(data);
    if (found == allocations_.end()) fail("memory is freed that was not allocated");
    const std::size_t size_bytes = found->second.size_bytes;
    allocations_.erase(found);
    return size_bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<CUstream_st>> streams_;
  struct Allocation {
    std::size_t size_bytes;
    int gpu;
  };
  std::map<const void*, Allocation> allocations_;
};

Registry& registry() {
  static auto& all = *new Registry;  // never destroyed, because static objects may own streams
  return all;
}

void refuse_used_memory(const MemoryRange& memory) {
  for (const auto& stream : registry().streams()) {
    if (stream->uses(memory)) fail("memory is freed before a copy that uses it has run");
    if (stream->creator == std::this_thread::get_id() && !stream->idle())
      fail("memory is freed while a stream of the calling thread has work");
  }
}

constexpr int kHost = -1;
std::atomic<int64_t> made_count{0};
std::atomic<int> capability_major{9}, capability_minor{0};

cudaError_t allocate(void** data, std::size_t size_bytes, int gpu) {
  if (this_thread_captures()) return cudaErrorStreamCaptureUnsupported;
  if (size_bytes > kGpuBytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(512, (size_bytes + 511) / 512 * 512);
  registry().add_memory(*data, size_bytes, gpu);
  ++made_count;
  return cudaSuccess;
}

}  // namespace

namespace aliquot::simulated {

int64_t made_resources() { return made_count; }

void set_compute_capability(int major, int minor) {
  capability_major = major;
  capability_minor = minor;
}

void launch(cudaStream_t stream, std::function<void()> work) {
  enqueue(stream, [work = std::move(work)] { return work; });
}

void launch_prepared(cudaStream_t stream, std::function<std::function<void()>()> prepare) {
  enqueue(stream, std::move(prepare));
}

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
cudaError_t cudaGetDevice(int* gpu) {
  *gpu = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (this_thread_captures()) return cudaErrorStreamCaptureUnsupported;
  cudaError_t result = cudaSuccess;
  for (const auto& stream : registry().streams()) {
    if (stream->gpu != current_gpu) continue;
    stream->wait();
    if (stream->faulted) result = cudaErrorLaunchFailure;
  }
  return result;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int gpu) {
  std::memset(properties->uuid.bytes, gpu + 1, sizeof(properties->uuid.bytes));
  std::snprintf(properties->name, sizeof(properties->name), "simulated");
  properties->major = capability_major;
  properties->minor = capability_minor;
  properties->sharedMemPerBlockOptin = 232448;
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
  *total_bytes = kGpuBytes;
  *free_bytes = kGpuBytes - std::min(kGpuBytes, registry().allocated_bytes(current_gpu));
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "error of the simulated CUDA runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "simulated"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void** data, std::size_t size_bytes) { return allocate(data, size_bytes, current_gpu); }
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (this_thread_captures()) return cudaErrorStreamCaptureUnsupported;
  refuse_used_memory({static_cast<const std::byte*>(data), registry().remove_memory(data)});
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t size_bytes, unsigned) { return allocate(data, size_bytes, kHost); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] { return [=] { std::memcpy(to, from, size_bytes); }; },
          {MemoryRange{static_cast<const std::byte*>(to), size_bytes},
           MemoryRange{static_cast<const std::byte*>(from), size_bytes}});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t size_bytes, cudaStream_t stream) {
  enqueue(stream, [=] { return [=] { std::memset(to, value, size_bytes); }; },
          {MemoryRange{static_cast<const std::byte*>(to), size_bytes}, {}});
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = registry().add(std::make_shared<CUstream_st>(current_gpu));
  ++made_count;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto removed = registry().remove(stream);
  if (removed == nullptr) return cudaErrorInvalidResourceHandle;
  if (!removed->idle()) fail("a stream is destroyed before its work has run");
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* number) {
  *number = stream->number;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (this_thread_captures()) return refused_in_capture(stream);
  if (stream->faulted) return cudaErrorLaunchFailure;
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (this_thread_captures()) return refused_in_capture(stream);
  if (stream == nullptr) return cudaSuccess;  // the default stream, which has no work here
  stream->wait();
  return stream->faulted ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* argument) {
  // The CUDA driver may run the host functions of all streams on one thread. With this mutex, a host function that
  // waits for a host function of another stream deadlocks here as well.
  static std::mutex one_thread;
  // CUDA can capture host functions, but a step must not depend on them.
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->enqueue([=] {
    if (stream->faulted) return;
    const std::lock_guard lock(one_thread);
    work(argument);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{current_gpu, flags, {}, {}, {}};
  ++made_count;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (event->gpu != stream->gpu) return cudaErrorInvalidResourceHandle;
  if (flags != cudaEventRecordExternal && record_captured(*event, stream)) return cudaSuccess;
  enqueue(stream, [event] { return [event_record = event->renew()] { event_record->pass(); }; });
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  cudaError_t result = cudaSuccess;
  if (wait_captured(*event, stream, result)) return result;
  auto event_record = event->get();
  if (event_record != nullptr) stream->enqueue([event_record] { event_record->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto from = start->get(), to = end->get();
  const bool timed = (start->flags & cudaEventDisableTiming) == 0 && (end->flags & cudaEventDisableTiming) == 0;
  if (!timed || from == nullptr || to == nullptr) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(from->mutex, to->mutex);
  if (!from->passed || !to->passed) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  {
    const std::lock_guard lock(event->mutex);
    // Code that ignores the error would take the event for passed.
    if (event->captured.exists) fail("an event that was recorded by a captured stream is queried");
    if (this_thread_captures()) fail("an event is queried by a thread that captures");
  }
  const auto event_record = event->get();
  if (event_record == nullptr) return cudaSuccess;
  const std::lock_guard lock(event_record->mutex);
  return event_record->passed ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"

// The functions of the driver that load kernels.
namespace {

std::atomic<int64_t> loaded_kernel_count{0};

CUresult get_module(CUmodule* module, CUfunction function) {
  *module = reinterpret_cast<CUmodule>(function);
  return CUDA_SUCCESS;
}
CUresult get_function_count(unsigned* count, CUmodule) {
  *count = aliquot::simulated::kKernelsPerModule;
  return CUDA_SUCCESS;
}
CUresult enumerate_functions(CUfunction* functions, unsigned count, CUmodule module) {
  for (unsigned i = 0; i < count; ++i) functions[i] = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
}
CUresult load_function(CUfunction function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ++loaded_kernel_count;
  return CUDA_SUCCESS;
}

}  // namespace

int64_t aliquot::simulated::loaded_kernels() { return loaded_kernel_count; }

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const std::map<std::string_view, void*> all{
      {"cuFuncGetModule", reinterpret_cast<void*>(get_module)},
      {"cuModuleGetFunctionCount", reinterpret_cast<void*>(get_function_count)},
      {"cuModuleEnumerateFunctions", reinterpret_cast<void*>(enumerate_functions)},
      {"cuFuncLoad", reinterpret_cast<void*>(load_function)}};
  const auto found = all.find(name);
  *status = found == all.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  *function = found == all.end() ? nullptr : found->second;
  return cudaSuccess;
}
