#include "sharding/cuda/peer_memory_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "sharding/comm/all_or_none.h"
#include "sharding/comm/share_between_threads.h"

namespace aliquot {
namespace {

/// Lets kernels of `device` read the memory of GPU `other`.
void enable_access(const CudaDevice& device, int other) {
  if (other == device.ordinal()) return;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, device.ordinal(), other), "asking whether one GPU reads another's memory");
  if (possible == 0) {
    throw UnavailableError(
        fmt::format("GPU {} cannot read the memory of GPU {}; run with --world nccl", device.ordinal(), other));
  }
  device.use();
  const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // another rank of this GPU, or another group, was here first
    return;
  }
  check(result, "letting one GPU read another's memory");
}

/// Memory that every rank holds which may read it. The last one frees it, so that a rank that leaves early, with an
/// exception, takes nothing from under a peer's kernel; the rank that took it may be gone with its device then.
class HeldMemory {
 public:
  explicit HeldMemory(std::byte* taken) : data_(taken) {}
  ~HeldMemory() { report(cudaFree(data_), "freeing GPU memory"); }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// A rank's hold on its own memory and its peers', and its line in the ledger.
struct Hold final : SymmetricBuffer::Backing {
  Hold(Booking line, std::vector<std::shared_ptr<HeldMemory>> held)
      : booking(std::move(line)), memories(std::move(held)) {}
  Booking booking;
  std::vector<std::shared_ptr<HeldMemory>> memories;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  CudaPeerMemory(CudaDevice& device, Exchange& exchange) : device_(device), exchange_(exchange) {
    const auto ordinals = exchange.all(std::to_string(device.ordinal()));
    one_gpu_ = std::all_of(ordinals.begin(), ordinals.end(), [&](const auto& other) { return other == ordinals[0]; });
    all_or_none(exchange, [&] {
      for (const auto& other : ordinals) enable_access(device, std::stoi(other));
    });
  }

  SymmetricBuffer allocate(int64_t size_bytes, Category category, std::string_view owner) override {
    std::optional<Booking> booking;
    std::shared_ptr<HeldMemory> own;
    const auto said = gather_or_throw(exchange_, [&] {
      booking.emplace(device_.ledger(), size_bytes, category, owner);
      own = std::make_shared<HeldMemory>(take_gpu_memory(device_, size_bytes, owner));
      return std::to_string(size_bytes);
    });
    expect_same_sizes(exchange_, said, owner);
    auto memories = gather_from_threads(exchange_, own);
    std::vector<const std::byte*> peers;
    for (const auto& memory : memories) peers.push_back(memory->data());
    return SymmetricBuffer(std::make_unique<Hold>(std::move(*booking), std::move(memories)), own->data(),
                           std::move(peers), size_bytes);
  }

  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    if (!one_gpu_) return std::nullopt;
    std::optional<Booking> booking;
    std::shared_ptr<HeldMemory> taken;
    const auto said = gather_or_throw(exchange_, [&] {
      booking.emplace(device_.ledger(), own_bytes, category, owner);
      if (exchange_.rank() == 0) taken = std::make_shared<HeldMemory>(take_gpu_memory(device_, size_bytes, owner));
      return std::to_string(size_bytes);
    });
    expect_same_sizes(exchange_, said, owner);
    std::vector memories{gather_from_threads(exchange_, taken)[0]};
    std::byte* data = memories[0]->data();
    return SharedRange(std::make_unique<Hold>(std::move(*booking), std::move(memories)), data, data, size_bytes);
  }

 private:
  CudaDevice& device_;
  Exchange& exchange_;
  bool one_gpu_ = false;
};

}  // namespace

std::unique_ptr<PeerMemory> make_cuda_peer_memory(Device& device, Exchange& exchange) {
  return std::make_unique<CudaPeerMemory>(cuda_device(device), exchange);
}

}  // namespace aliquot
