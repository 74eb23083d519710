#pragma once
// CUDA's runtime, wrapped once, for *.cu, *_cuda.* and *_nccl.* files alone. Compiled, not yet run on a GPU.

#include <cuda_runtime_api.h>
#include <exception>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/enqueue_cuda.h"

namespace aliquot {

class CudaDevice;

/// As check(), where nothing may be thrown: prints a line on standard error, unless the process is exiting.
void log_cuda_error(cudaError_t result, std::string_view what) noexcept;

/// As cuda_stream(): the stream's device becomes the calling thread's current one.
CudaDevice& cuda_device(Stream& stream);
CudaDevice& cuda_device(Device& device);

/// Every loop over elements, as CUDA kernels. The same table for all GPUs.
const Kernels& cuda_kernels();

/// Something that can keep a stream from ever finishing, and has to be looked after while the host waits for one.
class Watchdog {
 public:
  virtual ~Watchdog() = default;
  /// Called again and again, by the rank's own thread. Throws once the work can no longer come to its end, having made
  /// sure that it leaves the device.
  virtual void poll() = 0;
  /// True when nothing that could hang is on the device.
  virtual bool idle() = 0;
};

/// An event without timing.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int ordinal);
  ~CudaEvent() override;

  bool passed() const override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream that does not synchronise with the default stream; or a user's own, which is not destroyed with it.
class CudaStream final : public Stream {
 public:
  CudaStream(Lane lane, CudaDevice& device, int priority);
  CudaStream(Lane lane, CudaDevice& device, cudaStream_t user_stream);
  ~CudaStream() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void wait(cudaEvent_t event);
  /// Polls the device's watches while it waits; without any, sleeps in the driver.
  void synchronize() override;

  /// On a thread of the driver. What it throws is thrown by synchronize() of any stream of the device, and drops the
  /// device's later host work. Waits while 256 are queued; throws FaultError if the GPU has faulted meanwhile.
  void run(Task work) override;

  CudaDevice& device() { return device_; }
  cudaStream_t get() const { return stream_; }

 private:
  struct HostWork;

  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  bool owned_;
  std::unique_ptr<HostWork> host_work_;
};

/// One rank's view of one GPU. Several in a process may stand for the same GPU; each has a ledger of its own.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal);

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string describe() const override;
  Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) override;
  Buffer allocate_host(int64_t size_bytes, std::string_view owner) override;
  std::unique_ptr<Stream> make_stream(Lane lane) override;
  std::unique_ptr<Event> make_event() override;
  const Kernels& kernels() const override { return cuda_kernels(); }

  int ordinal() const { return ordinal_; }
  /// Makes this GPU the calling thread's current one.
  void make_current() const;

  /// What the driver says of the whole GPU, other processes included.
  struct Memory {
    int64_t free_bytes, total_bytes;
  };
  Memory memory() const;

  void add_watchdog(Watchdog& watch);
  void remove_watchdog(Watchdog& watch) noexcept;
  bool has_watchdogs() const { return !watchdogs_.empty(); }
  void poll_watchdogs();
  /// Polls until all are idle. Before what the driver would wait in for ever: freeing memory, destroying streams.
  void wait_until_watchdogs_idle() noexcept;

  /// Keeps the first failure of host work, to be thrown where the rank waits. fail() from any thread.
  void fail(std::exception_ptr failure) noexcept;
  void throw_if_failed();
  bool failed() noexcept;

 private:
  int priority(Lane lane) const;

  int ordinal_;
  int least_priority_ = 0, greatest_priority_ = 0;
  std::string name_;
  std::vector<Watchdog*> watchdogs_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

/// Memory of the driver's, null for no bytes; to be given to cudaFree. Throws UnavailableError, naming owner, size and what
/// the driver says is free, when there is not enough.
std::byte* allocate_gpu_memory(const CudaDevice& device, int64_t size_bytes, std::string_view owner);

/// The same, owned: with no line in a ledger, for who books it otherwise. Freed by the rank's own thread.
class GpuMemory {
 public:
  GpuMemory(CudaDevice& device, int64_t size_bytes, std::string_view owner)
      : device_(device), data_(allocate_gpu_memory(device, size_bytes, owner)) {}
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  CudaDevice& device_;
  std::byte* data_;
};

/// Host memory that GPUs read and write without a detour, all of the process; in no ledger. The calling thread has chosen
/// its GPU. Throws UnavailableError, naming owner and size, when the host gives no more.
class PinnedMemory {
 public:
  PinnedMemory(int64_t size_bytes, std::string_view owner);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// The same, booked with `accounting_device`, whose GPU it chooses if it is one.
Buffer allocate_pinned(Device& accounting_device, int64_t size_bytes, Category category, std::string_view owner);

}  // namespace aliquot
