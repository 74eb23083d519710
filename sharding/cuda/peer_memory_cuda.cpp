#include "sharding/cuda/peer_memory_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "sharding/comm/gather_from_threads.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

/// Lets kernels of `device` read the memory of GPU `other`.
void enable_access(const CudaDevice& device, int other) {
  if (other == device.ordinal()) return;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, device.ordinal(), other), "cudaDeviceCanAccessPeer()");
  if (possible == 0) {
    throw UnavailableError(fmt::format("GPU {} cannot read the memory of GPU {}: set WorldOptions::kind to nccl",
                                       device.ordinal(), other));
  }
  device.make_current();
  const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // clears the error: another rank or group has already enabled access
    return;
  }
  check(result, "cudaDeviceEnablePeerAccess()");
}

/// GPU memory, owned jointly by all ranks that may read it. The last rank frees it, so a rank that ends early with an
/// exception does not free memory that a peer's kernel still reads. Each rank drains its GPU before it gives up the
/// memory. The Device of the rank that allocated it may be destroyed earlier.
class SharedGpuMemory {
 public:
  SharedGpuMemory(const CudaDevice& device, int64_t size_bytes, std::string_view owner)
      : ordinal_(device.ordinal()), data_(allocate_gpu_memory(device, size_bytes, owner)) {}
  /// Runs on the thread of the last rank that held the memory.
  ~SharedGpuMemory() {
    int current = 0;
    log_cuda_error(cudaGetDevice(&current), "querying the current GPU");
    log_cuda_error(cudaSetDevice(ordinal_), "selecting the GPU of shared memory");
    log_cuda_error(cudaFree(data_), "freeing GPU memory");
    log_cuda_error(cudaSetDevice(current), "selecting a GPU");
  }
  SharedGpuMemory(const SharedGpuMemory&) = delete;
  SharedGpuMemory& operator=(const SharedGpuMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  int ordinal_;
  std::byte* data_;
};

/// Keeps the memory of this rank and of its peers allocated. Keeps this rank's memory counted in its ledger. The
/// destructor waits for this rank's work, which may use the memory of peers on other GPUs.
class PeerMemoryBacking final : public SymmetricBuffer::Backing {
 public:
  PeerMemoryBacking(CudaDevice& device, Booking booking, std::vector<std::shared_ptr<SharedGpuMemory>> memories)
      : device_(device), booking_(std::move(booking)), memories_(std::move(memories)) {}
  ~PeerMemoryBacking() override { device_.drain(); }

 private:
  CudaDevice& device_;
  Booking booking_;
  std::vector<std::shared_ptr<SharedGpuMemory>> memories_;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  CudaPeerMemory(CudaDevice& device, Bootstrap& bootstrap) : device_(device), bootstrap_(bootstrap) {
    const auto ordinals = bootstrap.all_gather(std::to_string(device.ordinal()));
    one_gpu_ = std::all_of(ordinals.begin(), ordinals.end(), [&](const auto& other) { return other == ordinals[0]; });
    run_on_all_or_throw(bootstrap, [&] {
      for (const auto& other : ordinals) enable_access(device, std::stoi(other));
    });
  }

  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override {
    std::optional<Booking> booking;
    std::shared_ptr<SharedGpuMemory> own;
    const auto size_of_ranks = gather_or_throw(bootstrap_, [&] {
      booking.emplace(device_.ledger(), own_bytes, category, owner);
      own = std::make_shared<SharedGpuMemory>(device_, own_bytes, owner);
      return std::to_string(own_bytes);
    });
    if (sizes == RankSizes::kEqual) expect_same_sizes(bootstrap_, size_of_ranks, owner);
    auto memories = gather_from_threads(bootstrap_, own);
    std::vector<const std::byte*> peers;
    for (const auto& memory : memories) peers.push_back(memory->data());
    return SymmetricBuffer(std::make_unique<PeerMemoryBacking>(device_, std::move(*booking), std::move(memories)),
                           own->data(), std::move(peers), own_bytes);
  }

  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    if (!one_gpu_) return std::nullopt;
    std::optional<Booking> booking;
    std::shared_ptr<SharedGpuMemory> allocated;
    const auto sizes = gather_or_throw(bootstrap_, [&] {
      booking.emplace(device_.ledger(), own_bytes, category, owner);
      if (bootstrap_.rank() == 0) allocated = std::make_shared<SharedGpuMemory>(device_, size_bytes, owner);
      return std::to_string(size_bytes);
    });
    expect_same_sizes(bootstrap_, sizes, owner);
    std::vector memories{object_from_thread(bootstrap_, 0, allocated)};
    std::byte* data = memories[0]->data();
    return SharedRange(std::make_unique<PeerMemoryBacking>(device_, std::move(*booking), std::move(memories)), data,
                       data, size_bytes);
  }

 private:
  CudaDevice& device_;
  Bootstrap& bootstrap_;
  bool one_gpu_ = false;
};

}  // namespace

std::unique_ptr<PeerMemory> make_cuda_peer_memory(Device& device, Bootstrap& bootstrap) {
  return std::make_unique<CudaPeerMemory>(cuda_device(device), bootstrap);
}

}  // namespace aliquot
