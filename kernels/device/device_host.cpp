#include "kernels/device/device_host.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <limits>

#include "kernels/device/host_queue.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/kernels_host.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

void free_buffer(void* context, std::byte* data, int64_t) noexcept {
  std::free(data);
  delete static_cast<Booking*>(context);
}

/// Returns null when memory is exhausted.
void* allocate_blocks(int64_t size_bytes) {
  constexpr int64_t kMaxSizeBytes = std::numeric_limits<int64_t>::max() - kBufferAlignmentBytes;
  if (size_bytes > kMaxSizeBytes) return nullptr;  // rounding up to whole blocks would overflow
  const int64_t blocks = std::max<int64_t>(1, (size_bytes + kBufferAlignmentBytes - 1) / kBufferAlignmentBytes);
  return std::aligned_alloc(kBufferAlignmentBytes, static_cast<std::size_t>(blocks * kBufferAlignmentBytes));
}

class HostDevice final : public HostDeviceBase {
 public:
  using HostDeviceBase::HostDeviceBase;

  std::string describe() const override {
    return fmt::format("host, {} thread{}, {}", thread_count(), thread_count() == 1 ? "" : "s", name(best_isa()));
  }

  std::unique_ptr<Stream> make_stream(Lane lane) override {
    if (lane == Lane::kCompute) return std::make_unique<InlineStream>(lane, pool());
    return std::make_unique<HostQueue>(lane, pool(), add_timeline(), failed_work_callback());
  }
};

}  // namespace

Buffer HostDeviceBase::allocate(int64_t size_bytes, Category category, std::string_view owner) {
  auto booking = std::make_unique<Booking>(ledger(), size_bytes, category, owner);
  void* data = allocate_blocks(size_bytes);
  if (data == nullptr)
    throw UnavailableError(fmt::format("cannot allocate {} bytes of host memory for {}", size_bytes, owner));
  return Buffer(static_cast<std::byte*>(data), size_bytes, free_buffer, booking.release());
}

std::unique_ptr<Event> HostDeviceBase::make_event() { return std::make_unique<HostEvent>(); }

const Kernels& HostDeviceBase::kernels() const { return host_kernels(); }

std::unique_ptr<Device> make_host_device(int thread_count) { return std::make_unique<HostDevice>(thread_count); }

}  // namespace aliquot
