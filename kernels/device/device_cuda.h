#pragma once
// Wrappers of the CUDA runtime. Only *.cu, *_cuda.* and *_nccl.* files include this header.

#include <cuda_runtime_api.h>
#include <exception>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/enqueue_cuda.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {

class CudaDevice;

/// Like check(), for code that must not throw: logs the error, unless the CUDA runtime is being unloaded.
void log_cuda_error(cudaError_t result, std::string_view action) noexcept;

/// Returns the GPU of a stream or device. Throws std::logic_error for a host stream or host device.
CudaDevice& cuda_device(Stream& stream);
CudaDevice& cuda_device(Device& device);

/// Returns the element-wise kernels in CUDA: one table for all GPUs.
const Kernels& cuda_kernels();

/// Watches work that may never finish, such as a collective with a failed rank. The rank's thread polls all watchdogs
/// of a device while it waits for a stream of that device.
class Watchdog {
 public:
  virtual ~Watchdog() = default;
  /// Called repeatedly by the rank's thread. If the work can no longer finish, removes it from the device and throws.
  virtual void poll() = 0;
  /// Returns whether none of the watched work is still on the device.
  virtual bool idle() = 0;
};

/// Work that may never finish, and that CudaDevice::abort_work() ends: a capture, a graph or a communicator.
class AbortableWork {
 public:
  virtual ~AbortableWork() = default;
  /// Ends the work and destroys its handle of CUDA or NCCL. Graphs: on the rank's thread; communicators: on any thread.
  virtual void abort() noexcept = 0;
};

/// A CUDA event. Events without timing cost less.
class CudaEvent final : public Event {
 public:
  enum class Timing : uint8_t { kOff, kOn };
  explicit CudaEvent(int ordinal, Timing timing = Timing::kOff);
  ~CudaEvent() override;

  bool passed() const override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A CUDA stream that does not synchronise with the default stream, or a wrapper of a stream that the user owns. The
/// destructor waits for all work of the stream.
class CudaStream final : public Stream {
 public:
  CudaStream(Lane lane, CudaDevice& device, int priority);
  CudaStream(Lane lane, CudaDevice& device, cudaStream_t user_stream);
  ~CudaStream() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void wait(cudaEvent_t event);
  /// Polls the device's watchdogs while it waits. If there are none, it sleeps in the driver.
  void synchronize() override;

  /// Runs `work` on a thread of the CUDA driver. If it throws, the device drops host work that has not begun, and
  /// synchronize() of every stream of the device throws the exception. run() waits while 256 tasks are queued, and
  /// throws FaultError if the GPU faults during that wait.
  void run(Task work) override;

  /// Whether a WorkCapture captures the work of this stream.
  bool is_captured() const;

  CudaDevice& device() { return device_; }
  cudaStream_t get() const { return stream_; }

 private:
  struct HostWork;

  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  bool owned_;
  std::unique_ptr<HostWork> host_work_;
};

/// One rank's view of one GPU. Several ranks of a process may share a GPU: each has its own CudaDevice and ledger.
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
  /// The compute capability: 90 for H100 and H200.
  int capability() const { return capability_; }
  /// The most bytes of shared memory that a thread block may use.
  int64_t block_shared_bytes() const { return block_shared_bytes_; }
  /// The name of the GPU's model, such as "NVIDIA H200".
  const std::string& model_name() const { return name_; }
  /// The UUID of the GPU, as hexadecimal digits. If MIG divides a GPU, each part has its own UUID.
  const std::string& uuid() const { return uuid_; }
  /// Calls cudaSetDevice() for the calling thread.
  void make_current() const;

  /// The free and total memory of the GPU, as the driver reports them. Memory that other processes use is not free.
  struct Memory {
    int64_t free_bytes, total_bytes;
  };
  Memory memory() const;
  GpuMemoryUse memory_use() const;
  /// Counts memory that an NCCL communicator has allocated on this GPU.
  void add_nccl_bytes(int64_t bytes) { nccl_bytes_ += bytes; }

  void add_watchdog(Watchdog& watchdog);
  void remove_watchdog(Watchdog& watchdog) noexcept;
  bool has_watchdogs() const { return !watchdogs_.empty(); }
  void poll_watchdogs();
  /// Polls until all watchdogs are idle. Call it before a CUDA call that waits for the device. That call would never
  /// return if work on the device hangs.
  void wait_until_watchdogs_idle() noexcept;
  /// Waits for all work on the GPU, also that of other ranks of the process. Call it before memory is freed. Makes the
  /// GPU current for the calling thread.
  void drain() noexcept;

  /// The abort of a communicator waits until no graph has its collectives, and a running graph may wait for another
  /// communicator. So abort_work() first ends all captures and graphs, and then aborts all communicators together.
  void add_graph(AbortableWork& graph) { graphs_.push_back(&graph); }
  void remove_graph(AbortableWork& graph) noexcept { std::erase(graphs_, &graph); }
  bool has_graphs() const { return !graphs_.empty(); }
  void add_communicator(AbortableWork& communicator) { communicators_.push_back(&communicator); }
  void remove_communicator(AbortableWork& communicator) noexcept { std::erase(communicators_, &communicator); }
  void abort_work() noexcept;

  /// Stores an exception of host work, which throw_if_failed() rethrows. Later calls are ignored. Any thread may call
  /// it.
  void fail(std::exception_ptr failure) noexcept;
  void throw_if_failed();
  bool failed() noexcept;

 private:
  int priority(Lane lane) const;

  int ordinal_, capability_ = 0;
  int64_t block_shared_bytes_ = 0;
  int least_priority_ = 0, greatest_priority_ = 0;
  int64_t start_bytes_ = 0, nccl_bytes_ = 0;  // see GpuMemoryUse
  std::string name_, uuid_;
  std::vector<Watchdog*> watchdogs_;
  std::vector<AbortableWork*> graphs_, communicators_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

/// Calls cudaMalloc(); the caller calls cudaFree(). Returns null for 0 bytes. Throws UnavailableError, with owner, size
/// and free memory, when memory is exhausted.
std::byte* allocate_gpu_memory(const CudaDevice& device, int64_t size_bytes, std::string_view owner);

/// Owns GPU memory. The code that creates this object must count the memory in the ledger. The rank's thread must
/// destroy the object.
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

/// Owns pinned host memory, which every GPU of the process can access. It does not update the ledger. The calling
/// thread must have made its GPU current. Throws UnavailableError, with owner and size, when host memory is exhausted.
/// The destructor waits for the work of `device`, unless it is null.
class PinnedMemory {
 public:
  PinnedMemory(CudaDevice* device, int64_t size_bytes, std::string_view owner);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  CudaDevice* device_;
  std::byte* data_ = nullptr;
};

/// Allocates pinned host memory that the ledger of `accounting_device` counts. If that device is a GPU, makes it
/// current.
Buffer allocate_pinned(Device& accounting_device, int64_t size_bytes, Category category, std::string_view owner);

}  // namespace aliquot
