#pragma once
// Copies of host data on a GPU.

#include <array>
#include <cstring>
#include <memory>

#include "kernels/device/device_cuda.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Waits for one event, not for later work of the stream. Meanwhile polls the watchdogs, which throw if the stream can
/// no longer finish.
inline void wait_for_event(CudaDevice& device, const Event& event) {
  while (!event.passed()) device.poll_watchdogs();
}

/// GPU memory that receives host data, and pinned memory for the copy.
class Upload {
 public:
  explicit Upload(CudaDevice& device) : device_(device) {}

  /// Waits until the previous copy has read the pinned memory, then enqueues a copy. Returns the address of the copy on
  /// the GPU, which stays the same while `size_bytes` does not increase.
  const std::byte* send(Stream& stream, const void* from, int64_t size_bytes) {
    if (size_bytes_ < size_bytes) make(size_bytes);
    wait_for_event(device_, *sent_);
    std::memcpy(pinned_->data(), from, static_cast<size_t>(size_bytes));
    cuda_kernels().copy(stream, gpu_->data(), pinned_->data(), size_bytes);
    stream.record(*sent_);
    return gpu_->data();
  }

 private:
  void make(int64_t size_bytes) {
    device_.make_current();
    pinned_ = std::make_unique<PinnedMemory>(&device_, size_bytes, "uploaded data");
    gpu_ = std::make_unique<GpuMemory>(device_, size_bytes, "uploaded data");
    sent_ = device_.make_event();
    size_bytes_ = size_bytes;
  }

  CudaDevice& device_;
  int64_t size_bytes_ = 0;
  std::unique_ptr<PinnedMemory> pinned_;
  std::unique_ptr<GpuMemory> gpu_;
  std::unique_ptr<Event> sent_;  // passed() is true until the event is first recorded
};

/// Two uploads that alternate: one can be filled while the GPU still reads the other.
class AlternatingUpload {
 public:
  explicit AlternatingUpload(CudaDevice& device) : uploads_{Upload(device), Upload(device)} {}

  /// The data stays valid until the second call after this one.
  const std::byte* send(Stream& stream, const void* from, int64_t size_bytes) {
    next_ = 1 - next_;
    return uploads_[next_].send(stream, from, size_bytes);
  }

 private:
  std::array<Upload, 2> uploads_;
  size_t next_ = 0;
};

}  // namespace aliquot
