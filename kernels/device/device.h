#pragma once
// The interface of a device, host or GPU: its memory, its streams and its element-wise kernels.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/device/stream.h"
#include "kernels/system/ledger.h"

struct CUstream_st;  // the type to which cudaStream_t points

#pragma GCC visibility push(default)
namespace aliquot {

struct Kernels;

/// Owns memory of one device, aligned to kBufferAlignmentBytes. The device's ledger counts it while the buffer exists.
/// Move-only. Must not outlive its device.
class Buffer {
 public:
  using Free = void (*)(void* context, std::byte* data, int64_t size_bytes) noexcept;

  Buffer() = default;
  Buffer(std::byte* data, int64_t size_bytes, Free free, void* context)
      : data_(data), size_bytes_(size_bytes), free_(free), context_(context) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (free_ != nullptr) free_(context_, data_, size_bytes_);
  }

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(free_, other.free_);
    std::swap(context_, other.context_);
  }

  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  Free free_ = nullptr;
  void* context_ = nullptr;
};

inline constexpr int64_t kBufferAlignmentBytes = 256;

enum class DeviceKind : uint8_t { kHost, kCuda };

/// The device of one rank. All calls come from the rank's thread. Kernels run on the streams of make_stream().
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// Logs memory that is still allocated, unless an exception is unwinding the stack.
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string describe() const = 0;  // "host, 2 threads, avx512", "NVIDIA H200 #0"

  /// Returns uninitialised memory. Throws UnavailableError, with owner and size, when memory is exhausted or the
  /// ledger's limit would be exceeded, and std::logic_error for a negative size. The ledger counts the memory as held
  /// and, unless the category is kArena, as in use.
  virtual Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) = 0;

  /// Returns host memory for fast copies to and from this device. For a GPU, the memory is pinned, and the ledger does
  /// not count it.
  virtual Buffer allocate_host(int64_t size_bytes, std::string_view owner) = 0;

  virtual std::unique_ptr<Stream> make_stream(Lane lane) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  /// Returns the element-wise kernels for streams of this device.
  virtual const Kernels& kernels() const = 0;

  /// Sets a callback for exceptions in the work of a host stream. The stream's worker thread calls it inside the catch
  /// block. The rank's own thread may be waiting for that work, and the callback can end this wait. Set it before any
  /// stream exists. It must not throw. Streams of a GPU never call it.
  void on_failed_work(std::function<void()> callback) { failed_work_callback_ = std::move(callback); }

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

 protected:
  const std::function<void()>& failed_work_callback() const { return failed_work_callback_; }

 private:
  Ledger ledger_;
  std::function<void()> failed_work_callback_;
};

/// Returns a host device that computes with `thread_count` threads.
std::unique_ptr<Device> make_host_device(int thread_count);

/// Returns the GPU with number `ordinal`. Throws UnavailableError when it does not exist or this build has no CUDA
/// support.
std::unique_ptr<Device> make_cuda_device(int ordinal);

/// Wraps the user's cudaStream_t as a stream of `device`. Aliquot's work is then ordered with the work that the user
/// enqueues on `stream`. The user keeps ownership of `stream`, which must outlive the result: its destructor waits for
/// the work of `stream`. Throws UnavailableError in a build without CUDA.
std::unique_ptr<Stream> wrap_cuda_stream(Device& device, Lane lane, CUstream_st* stream);

/// Returns the number of GPUs that this process can use: 0 without a driver or in a build without CUDA.
int cuda_device_count() noexcept;

}  // namespace aliquot
#pragma GCC visibility pop
