#pragma once
// Where things run: memory, streams and loops of one device, behind one interface.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/device/stream.h"
#include "kernels/system/ledger.h"

struct CUstream_st;  // what CUDA's cudaStream_t points to

#pragma GCC visibility push(default)
namespace aliquot {

struct Kernels;

/// Memory of one device, owned: booked in the device's ledger while it lives. Aligned to kBufferAlignmentBytes.
/// Move-only; must not outlive its device.
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

/// One rank's device. Used from the rank's own thread; the loops it launches run on its streams.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// Names on standard error what is still held of it, unless an exception is unwinding: the leaks.
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string describe() const = 0;  // "host, 2 threads, avx512", "NVIDIA H200 #0"

  /// Not initialised. Throws UnavailableError, naming owner and size, when the memory is not to be had or the ledger's
  /// limit would be passed; std::logic_error for a negative size. kArena memory counts as held only; any other category counts as in use too.
  virtual Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) = 0;

  /// Host memory that copies to and from this device are quick with: pinned for a GPU, and no entry of its ledger then.
  virtual Buffer allocate_host(int64_t size_bytes, std::string_view owner) = 0;

  virtual std::unique_ptr<Stream> make_stream(Lane lane) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  /// Every loop over elements, for streams of this device.
  virtual const Kernels& kernels() const = 0;

  /// What a host stream's worker calls when work on it has thrown, while it handles the exception: the rank's own thread may
  /// be waiting for what will never come now. Set before there are streams; must not throw. A GPU's streams never call it.
  void on_failed_work(std::function<void()> callback) { failed_work_callback_ = std::move(callback); }

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

 protected:
  const std::function<void()>& failed_work_callback() const { return failed_work_callback_; }

 private:
  Ledger ledger_;
  std::function<void()> failed_work_callback_;
};

/// The host, computing with `thread_count` threads.
std::unique_ptr<Device> make_host_device(int thread_count);

/// The GPU of that number. Throws UnavailableError, saying what is missing, when there is none or this build has no CUDA.
std::unique_ptr<Device> make_cuda_device(int ordinal);

/// A stream that the user made and keeps (a cudaStream_t), as a stream of `device`, so that work is ordered with the user's
/// own. Throws UnavailableError in a build without CUDA.
std::unique_ptr<Stream> wrap_cuda_stream(Device& device, Lane lane, CUstream_st* stream);

/// GPUs this process can use; 0 without a driver or in a build without CUDA. Never throws.
int cuda_device_count() noexcept;

}  // namespace aliquot
#pragma GCC visibility pop
