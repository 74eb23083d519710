#include "kernels/device/device_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>
#include <thread>

#include "kernels/device/kernel_modules_cuda.h"
#include "kernels/device/poll_until.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "kernels/system/log_message.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

std::string cuda_error_message(cudaError_t result, std::string_view action) {
  return fmt::format("{} failed with CUDA error {} ({})", action, cudaGetErrorName(result), cudaGetErrorString(result));
}

/// Advice to the user for errors that the machine or the build causes. Empty for all other errors.
std::string_view remedy_for(cudaError_t result) {
  switch (result) {
    case cudaErrorNoDevice:
      return "no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use WorldOptions::device host without "
             "WorldOptions::kind nccl";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the GPU driver is missing, or older than this build needs; install the current driver, or use "
             "WorldOptions::device host without WorldOptions::kind nccl";
    case cudaErrorStubLibrary: return "the CUDA driver library is a stub; install the GPU driver";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this build has no code for this GPU; rebuild with its architecture in -DCMAKE_CUDA_ARCHITECTURES";
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady: return "the GPU is busy or not ready; check nvidia-smi";
    case cudaErrorInvalidDevice: return "no GPU has this number; check nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorMemoryAllocation: return "the GPU has too little free memory";
    default: return {};
  }
}

/// The GPU memory that a Buffer owns, and its entry in the ledger.
struct BookedMemory {
  BookedMemory(CudaDevice& device, int64_t size_bytes, Category category, std::string_view owner)
      : booking(device.ledger(), size_bytes, category, owner), memory(device, size_bytes, owner) {}
  Booking booking;
  GpuMemory memory;
};

void free_buffer(void* context, std::byte*, int64_t) noexcept { delete static_cast<BookedMemory*>(context); }

struct BookedPinned {
  BookedPinned(Device& device, int64_t size_bytes, Category category, std::string_view owner)
      : booking(device.ledger(), size_bytes, category, owner),
        memory(dynamic_cast<CudaDevice*>(&device), size_bytes, owner) {}
  Booking booking;
  PinnedMemory memory;
};

void free_pinned(void* context, std::byte*, int64_t) noexcept { delete static_cast<BookedPinned*>(context); }

}  // namespace

void check(cudaError_t result, std::string_view action) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that check_launch() does not report it again
  const std::string_view remedy = remedy_for(result);
  if (remedy.empty()) throw FaultError(cuda_error_message(result, action));
  throw UnavailableError(fmt::format("{}: {}", cuda_error_message(result, action), remedy));
}

void check_launch(std::string_view kernel) {
  const cudaError_t result = cudaGetLastError();
  if (result != cudaSuccess) check(result, fmt::format("launching {}", kernel));
}

void log_cuda_error(cudaError_t result, std::string_view action) noexcept {
  // While static objects are destroyed, the runtime may be unloaded already. The driver has then freed everything.
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  (void)cudaGetLastError();
  log_message("{} failed with CUDA error: {}", action, std::string_view(cudaGetErrorString(result)));
}

CudaDevice& cuda_device(Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) throw std::logic_error("expected a GPU, but the device is a host device");
  return *cuda;
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  make_current();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), fmt::format("querying the properties of GPU {}", ordinal));
  name_ = properties.name;
  capability_ = 10 * properties.major + properties.minor;
  block_shared_bytes_ = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  for (const char byte : properties.uuid.bytes) uuid_ += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  check(cudaDeviceGetStreamPriorityRange(&least_priority_, &greatest_priority_), "querying stream priorities");
  load_kernel_modules();
  const Memory now = memory();
  start_bytes_ = now.total_bytes - now.free_bytes;
}

std::string CudaDevice::describe() const { return fmt::format("{} #{}", name_, ordinal_); }

void CudaDevice::make_current() const { check(cudaSetDevice(ordinal_), fmt::format("selecting GPU {}", ordinal_)); }

Buffer CudaDevice::allocate(int64_t size_bytes, Category category, std::string_view owner) {
  auto booked = std::make_unique<BookedMemory>(*this, size_bytes, category, owner);
  std::byte* data = booked->memory.data();
  return Buffer(data, size_bytes, free_buffer, booked.release());
}

std::unique_ptr<Stream> CudaDevice::make_stream(Lane lane) {
  return std::make_unique<CudaStream>(lane, *this, priority(lane));
}

std::unique_ptr<Event> CudaDevice::make_event() { return std::make_unique<CudaEvent>(ordinal_); }

CudaDevice::Memory CudaDevice::memory() const {
  make_current();
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "querying free GPU memory");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

GpuMemoryUse CudaDevice::memory_use() const {
  const Memory now = memory();
  return {.total_bytes = now.total_bytes,
          .used_bytes = now.total_bytes - now.free_bytes,
          .start_bytes = start_bytes_,
          .nccl_bytes = nccl_bytes_};
}

// Computation on this rank waits for gathers, and other ranks wait for reduces. Both are short, so a high priority lets
// them start as soon as a multiprocessor is free. Copies of the io lane need no priority: they use separate copy
// engines.
int CudaDevice::priority(Lane lane) const {
  switch (lane) {
    case Lane::kGather:
    case Lane::kForward0:
    case Lane::kForward1:
    case Lane::kBackward0:
    case Lane::kBackward1: return greatest_priority_;
    case Lane::kReduce:
    case Lane::kExchange: return std::min(greatest_priority_ + 1, least_priority_);
    case Lane::kCompute:
    case Lane::kIo: return least_priority_;
  }
  return least_priority_;
}

void CudaDevice::add_watchdog(Watchdog& watchdog) { watchdogs_.push_back(&watchdog); }

void CudaDevice::remove_watchdog(Watchdog& watchdog) noexcept { std::erase(watchdogs_, &watchdog); }

void CudaDevice::poll_watchdogs() {
  for (Watchdog* watchdog : watchdogs_) watchdog->poll();
}

void CudaDevice::wait_until_watchdogs_idle() noexcept {
  // Polls all watchdogs together. A collective may wait in a stream for a collective of another watchdog, and only that
  // watchdog can then detect the timeout.
  const auto poll = [](Watchdog* watchdog) {
    try {
      watchdog->poll();
    } catch (const std::exception& error) {
      // poll() removes the work from the device before it throws. A later wait for the results throws again.
      log_message(error.what());
    }
  };
  const auto all_idle = [this] {
    return std::ranges::all_of(watchdogs_, [](Watchdog* watchdog) { return watchdog->idle(); });
  };
  poll_until(all_idle, [&] {
    for (Watchdog* watchdog : watchdogs_) {
      if (!watchdog->idle()) poll(watchdog);
    }
  });
}

void CudaDevice::drain() noexcept {
  wait_until_watchdogs_idle();
  log_cuda_error(cudaSetDevice(ordinal_), "selecting a GPU");
  log_cuda_error(cudaDeviceSynchronize(), "waiting for a GPU");
}

void CudaDevice::abort_work() noexcept {
  for (AbortableWork* graph : graphs_) graph->abort();
  std::vector<std::thread> threads;
  std::size_t started = 0;
  try {
    threads.reserve(communicators_.size());
    for (; started < communicators_.size(); ++started)
      threads.emplace_back([communicator = communicators_[started]] { communicator->abort(); });
  } catch (const std::exception& error) {  // no thread can be started
    log_message("aborting communicators one after another: {}", std::string_view(error.what()));
  }
  for (; started < communicators_.size(); ++started) communicators_[started]->abort();
  for (std::thread& thread : threads) thread.join();
}

void CudaDevice::fail(std::exception_ptr failure) noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
}

bool CudaDevice::failed() noexcept {
  const std::lock_guard lock(failure_mutex_);
  return failure_ != nullptr;
}

void CudaDevice::throw_if_failed() {
  const std::lock_guard lock(failure_mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

std::byte* allocate_gpu_memory(const CudaDevice& device, int64_t size_bytes, std::string_view owner) {
  if (size_bytes == 0) return nullptr;
  device.make_current();
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, static_cast<std::size_t>(size_bytes));
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    const CudaDevice::Memory now = device.memory();
    throw UnavailableError(fmt::format("cannot allocate {} bytes for {} on {}: {} of its {} bytes are free", size_bytes,
                                       owner, device.describe(), now.free_bytes, now.total_bytes));
  }
  check(result, fmt::format("allocating {} bytes of GPU memory for {}", size_bytes, owner));
  return static_cast<std::byte*>(data);
}

GpuMemory::~GpuMemory() {
  if (data_ == nullptr) return;
  device_.drain();
  log_cuda_error(cudaFree(data_), "freeing GPU memory");
}

PinnedMemory::PinnedMemory(CudaDevice* device, int64_t size_bytes, std::string_view owner) : device_(device) {
  if (size_bytes == 0) return;
  const cudaError_t result =
      cudaHostAlloc(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(size_bytes), cudaHostAllocPortable);
  // Here this error means that host memory is exhausted. check() would report that GPU memory is exhausted.
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw UnavailableError(fmt::format(
        "cannot allocate {} bytes of pinned host memory for {}: free host memory or raise the limit of ulimit -l",
        size_bytes, owner));
  }
  check(result, fmt::format("allocating {} bytes of pinned host memory for {}", size_bytes, owner));
}

PinnedMemory::~PinnedMemory() {
  if (device_ != nullptr) device_->drain();
  log_cuda_error(cudaFreeHost(data_), "freeing pinned host memory");
}

Buffer allocate_pinned(Device& accounting_device, int64_t size_bytes, Category category, std::string_view owner) {
  // Without a current device CUDA would create a context on GPU 0, even for a rank that uses another GPU. A context
  // takes several hundred MiB.
  if (const auto* gpu = dynamic_cast<CudaDevice*>(&accounting_device)) gpu->make_current();
  auto booked = std::make_unique<BookedPinned>(accounting_device, size_bytes, category, owner);
  std::byte* data = booked->memory.data();
  return Buffer(data, size_bytes, free_pinned, booked.release());
}

Buffer CudaDevice::allocate_host(int64_t size_bytes, std::string_view owner) {
  auto memory = std::make_unique<PinnedMemory>(this, size_bytes, owner);
  std::byte* data = memory->data();
  const auto free = [](void* context, std::byte*, int64_t) noexcept { delete static_cast<PinnedMemory*>(context); };
  return Buffer(data, size_bytes, free, memory.release());
}

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw UnavailableError(
        fmt::format("GPU {} does not exist: this process can use {} GPUs, numbered from 0; check nvidia-smi and "
                    "CUDA_VISIBLE_DEVICES",
                    ordinal, count));
  }
  return std::make_unique<CudaDevice>(ordinal);
}

std::string gpu_uuid(Device& device) {
  return device.kind() == DeviceKind::kCuda ? cuda_device(device).uuid() : std::string();
}

GpuMemoryUse gpu_memory_use(Device& device) {
  return device.kind() == DeviceKind::kCuda ? cuda_device(device).memory_use() : GpuMemoryUse();
}

}  // namespace aliquot
