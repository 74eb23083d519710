#include <array>
#include <atomic>
#include <stdexcept>

#include "kernels/device/device_cuda.h"
#include "kernels/device/poll_until.h"

namespace aliquot {
namespace {

/// Returns whether the queried work has finished. Throws if `query` is an error. Clears cudaErrorNotReady, which
/// check_launch() would otherwise report as an error.
bool query_finished(cudaError_t query, std::string_view what) {
  if (query == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check(query, what);
  return true;
}

}  // namespace

CudaEvent::CudaEvent(int ordinal, Timing timing) {
  check(cudaSetDevice(ordinal), "selecting the GPU of an event");
  const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event_, flags), "making an event");
}

CudaEvent::~CudaEvent() {
  // After a fault of the GPU, the destruction of every event fails. Only the first failure is logged.
  static std::atomic<bool> has_failed{false};
  const cudaError_t result = cudaEventDestroy(event_);
  if (result != cudaSuccess && !has_failed.exchange(true)) log_cuda_error(result, "destroying an event");
}

bool CudaEvent::passed() const {
  const cudaError_t result = cudaEventQuery(event_);
  if (result != cudaErrorNotReady) return true;  // true also after a fault, which synchronize() reports
  (void)cudaGetLastError();
  return false;
}

/// A ring of tasks that are queued in the stream. The stream is in order, so slots become free in the order of use.
struct CudaStream::HostWork {
  struct Slot {
    CudaDevice* device = nullptr;
    Task task;
    std::atomic<bool> in_use{false};
  };
  static constexpr std::size_t kCapacity = 256;
  std::array<Slot, kCapacity> slots;
  std::size_t enqueued_count = 0;

  static void CUDART_CB run(void* argument) {
    auto& slot = *static_cast<Slot*>(argument);
    try {
      if (!slot.device->failed()) slot.task();
    } catch (...) {
      slot.device->fail(std::current_exception());
    }
    slot.task = Task();
    slot.in_use.store(false, std::memory_order_release);
  }
};

CudaStream::CudaStream(Lane lane, CudaDevice& device, int priority) : Stream(lane), device_(device), owned_(true) {
  device.make_current();
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "making a stream");
}

CudaStream::CudaStream(Lane lane, CudaDevice& device, cudaStream_t user_stream)
    : Stream(lane), device_(device), stream_(user_stream), owned_(false) {}

CudaStream::~CudaStream() {
  // The caller may free the memory that the work uses, and slots of host work belong to this object. synchronize(), not
  // this destructor, reports exceptions of host work.
  device_.wait_until_watchdogs_idle();
  log_cuda_error(cudaSetDevice(device_.ordinal()), "selecting a GPU");  // for the null stream of a user
  log_cuda_error(cudaStreamSynchronize(stream_), "waiting for the work of a stream");
  if (owned_) log_cuda_error(cudaStreamDestroy(stream_), "destroying a stream");
}

void CudaStream::record(Event& event) {
  auto& cuda_event = dynamic_cast<CudaEvent&>(event);
  check(cudaEventRecord(cuda_event.get(), stream_), "recording an event");
}

void CudaStream::wait(const Event& event) { wait(dynamic_cast<const CudaEvent&>(event).get()); }

void CudaStream::wait(cudaEvent_t event) { check(cudaStreamWaitEvent(stream_, event, 0), "waiting for an event"); }

void CudaStream::synchronize() {
  // CUDA would also refuse this, but then the capture would be invalid.
  if (is_captured())
    throw std::logic_error("Stream::synchronize() was called while the work of the stream is captured");
  if (device_.has_watchdogs()) {
    poll_until([&] { return query_finished(cudaStreamQuery(stream_), "work on the GPU"); },
               [&] { device_.poll_watchdogs(); });
  } else {
    check(cudaStreamSynchronize(stream_), "work on the GPU");
  }
  device_.throw_if_failed();
}

bool CudaStream::is_captured() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "asking whether a stream captures");
  return status != cudaStreamCaptureStatusNone;
}

void CudaStream::run(Task work) {
  // A graph would call the task in each launch, but the slot holds it only once.
  if (is_captured()) throw std::logic_error("host work was enqueued while the work of the stream is captured");
  if (host_work_ == nullptr) host_work_ = std::make_unique<HostWork>();
  auto& slot = host_work_->slots[host_work_->enqueued_count++ % HostWork::kCapacity];
  poll_until([&] { return !slot.in_use.load(std::memory_order_acquire); },
             [&] {
               device_.poll_watchdogs();
               // After a fault the driver starts no more host work, so the slot would never become free.
               (void)query_finished(cudaStreamQuery(stream_), "work on the GPU");
             });
  slot.device = &device_;
  slot.task = std::move(work);
  slot.in_use.store(true, std::memory_order_relaxed);
  const cudaError_t result = cudaLaunchHostFunc(stream_, HostWork::run, &slot);
  if (result != cudaSuccess) slot.in_use.store(false, std::memory_order_relaxed);
  check(result, "enqueuing host work");
}

CudaDevice& cuda_device(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) throw std::logic_error("expected a stream of a GPU, but the stream belongs to a host device");
  return cuda->device();
}

cudaStream_t cuda_stream(Stream& stream) {
  cuda_device(stream).make_current();
  return static_cast<CudaStream&>(stream).get();
}

std::unique_ptr<Stream> wrap_cuda_stream(Device& device, Lane lane, CUstream_st* stream) {
  return std::make_unique<CudaStream>(lane, cuda_device(device), stream);
}

}  // namespace aliquot
