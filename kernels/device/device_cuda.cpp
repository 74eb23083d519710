#include "kernels/device/device_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>

#include "kernels/device/poll_until.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "kernels/system/log_message.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

std::string cuda_error_message(cudaError_t result, std::string_view what) {
  return fmt::format("{} failed: CUDA says {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

/// What the machine, not the program, would have to be changed for; empty where the fault is not the machine's.
std::string_view remedy_for(cudaError_t result) {
  switch (result) {
    case cudaErrorNoDevice: return "this machine shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the GPU's driver is missing, or older than this build needs; install the current one";
    case cudaErrorStubLibrary: return "the library found is a stub to link against; install the GPU's driver";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this build holds no code for this GPU; configure with its generation in -DCMAKE_CUDA_ARCHITECTURES";
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady: return "the GPU is busy or not ready; look at nvidia-smi";
    case cudaErrorInvalidDevice: return "there is no GPU of that number; look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorMemoryAllocation: return "the GPU has no memory left for it";
    default: return {};
  }
}

/// What a buffer of a GPU is: memory and its line in the ledger.
struct BookedMemory {
  BookedMemory(CudaDevice& device, int64_t size_bytes, Category category, std::string_view owner)
      : booking(device.ledger(), size_bytes, category, owner), memory(device, size_bytes, owner) {}
  Booking booking;
  GpuMemory memory;
};

void free_buffer(void* context, std::byte*, int64_t) noexcept { delete static_cast<BookedMemory*>(context); }

struct BookedPinned {
  BookedPinned(Ledger& ledger, int64_t size_bytes, Category category, std::string_view owner)
      : booking(ledger, size_bytes, category, owner), memory(size_bytes, owner) {}
  Booking booking;
  PinnedMemory memory;
};

void free_pinned(void* context, std::byte*, int64_t) noexcept { delete static_cast<BookedPinned*>(context); }

}  // namespace

void check(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // this call's error, so that the next launch is not blamed for it
  const std::string_view remedy = remedy_for(result);
  if (remedy.empty()) throw FaultError(cuda_error_message(result, what));
  throw UnavailableError(fmt::format("{}: {}", cuda_error_message(result, what), remedy));
}

void check_launch(std::string_view kernel) {
  const cudaError_t result = cudaGetLastError();
  if (result != cudaSuccess) check(result, fmt::format("launching {}", kernel));
}

void log_cuda_error(cudaError_t result, std::string_view what) noexcept {
  // The runtime may already be gone when static objects die; then the driver has taken everything back.
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  (void)cudaGetLastError();
  log_message("{} failed: CUDA says {}", what, std::string_view(cudaGetErrorString(result)));
}

CudaDevice& cuda_device(Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) throw std::logic_error("a GPU is needed here, and a device of another kind was given");
  return *cuda;
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  make_current();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), fmt::format("asking GPU {} what it is", ordinal));
  name_ = properties.name;
  check(cudaDeviceGetStreamPriorityRange(&least_priority_, &greatest_priority_), "asking for stream priorities");
}

std::string CudaDevice::describe() const { return fmt::format("{} #{}", name_, ordinal_); }

void CudaDevice::make_current() const { check(cudaSetDevice(ordinal_), fmt::format("choosing GPU {}", ordinal_)); }

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
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking how much GPU memory is free");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

// The computation waits for gathers, and peers wait for reduces: both are short and start as soon as a multiprocessor
// is free. Copies of the io lane use engines of their own.
int CudaDevice::priority(Lane lane) const {
  switch (lane) {
    case Lane::kGather: return greatest_priority_;
    case Lane::kReduce:
    case Lane::kExchange: return std::min(greatest_priority_ + 1, least_priority_);
    case Lane::kCompute:
    case Lane::kIo: return least_priority_;
  }
  return least_priority_;
}

void CudaDevice::add_watchdog(Watchdog& watch) { watchdogs_.push_back(&watch); }

void CudaDevice::remove_watchdog(Watchdog& watch) noexcept { std::erase(watchdogs_, &watch); }

void CudaDevice::poll_watchdogs() {
  for (Watchdog* watch : watchdogs_) watch->poll();
}

void CudaDevice::wait_until_watchdogs_idle() noexcept {
  for (Watchdog* watch : watchdogs_) {
    try {
      poll_until([&] { return watch->idle(); }, [&] { watch->poll(); });
    } catch (const std::exception& error) {
      // It has left the device, which is all that is asked for here; whoever waits for its results is told again.
      log_message(error.what());
    }
  }
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
    throw UnavailableError(fmt::format("{} has no {} bytes for {}: {} of its {} bytes are free", device.describe(),
                                       size_bytes, owner, now.free_bytes, now.total_bytes));
  }
  check(result, fmt::format("taking {} bytes of GPU memory for {}", size_bytes, owner));
  return static_cast<std::byte*>(data);
}

GpuMemory::~GpuMemory() {
  if (data_ == nullptr) return;
  device_.wait_until_watchdogs_idle();
  log_cuda_error(cudaFree(data_), "freeing GPU memory");
}

PinnedMemory::PinnedMemory(int64_t size_bytes, std::string_view owner) {
  if (size_bytes == 0) return;
  const cudaError_t result =
      cudaHostAlloc(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(size_bytes), cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {  // the host's, which check() could not know
    (void)cudaGetLastError();
    throw UnavailableError(
        fmt::format("the host has no {} bytes to pin for {}; free some, or look at ulimit -l", size_bytes, owner));
  }
  check(result, fmt::format("pinning {} bytes of host memory for {}", size_bytes, owner));
}

PinnedMemory::~PinnedMemory() { log_cuda_error(cudaFreeHost(data_), "freeing pinned host memory"); }

Buffer allocate_pinned(Device& accounting_device, int64_t size_bytes, Category category, std::string_view owner) {
  // Without a choice CUDA would set up the first GPU, and take some hundred MiB of it, for a rank of another one.
  if (const auto* gpu = dynamic_cast<CudaDevice*>(&accounting_device)) gpu->make_current();
  auto booked = std::make_unique<BookedPinned>(accounting_device.ledger(), size_bytes, category, owner);
  std::byte* data = booked->memory.data();
  return Buffer(data, size_bytes, free_pinned, booked.release());
}

Buffer CudaDevice::allocate_host(int64_t size_bytes, std::string_view owner) {
  auto memory = std::make_unique<PinnedMemory>(size_bytes, owner);
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
  check(cudaGetDeviceCount(&count), "looking for GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw UnavailableError(
        fmt::format("GPU {} was asked for, but this process can use {} (numbered from 0); look at nvidia-smi and "
                    "CUDA_VISIBLE_DEVICES",
                    ordinal, count));
  }
  return std::make_unique<CudaDevice>(ordinal);
}

int64_t used_gpu_bytes(Device& device) {
  if (device.kind() != DeviceKind::kCuda) return 0;
  const CudaDevice::Memory memory = cuda_device(device).memory();
  return memory.total_bytes - memory.free_bytes;
}

}  // namespace aliquot
