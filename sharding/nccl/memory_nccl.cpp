#include "sharding/nccl/memory_nccl.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <vector>

#include "kernels/system/booking.h"
#include "kernels/system/tell.h"
#include "sharding/comm/all_or_none.h"

namespace aliquot {
namespace {

constexpr int64_t kAlignmentBytes = NCCL_WIN_REQUIRED_ALIGNMENT;

void report(ncclResult_t result, const char* what) noexcept {
  if (result != ncclSuccess && result != ncclInProgress) {
    tell("{}: NCCL says {}", std::string_view(what), std::string_view(ncclGetErrorString(result)));
  }
}

/// One rank's memory, its registration and its line in the ledger.
class NcclMemory final : public SymmetricBuffer::Backing {
 public:
  NcclMemory(std::shared_ptr<NcclHandle> handle, int64_t size_bytes, Category category, std::string_view owner)
      : handle_(std::move(handle)),
        size_bytes_(size_bytes),
        booking_(handle_->device().ledger(), size_bytes, category, owner) {
    if (size_bytes == 0) return;
    handle_->device().use();
    // Refused without the driver's virtual memory (NCCL_CUMEM_ENABLE=0), and when memory is short, which the plain way
    // then says in a sentence.
    if (ncclMemAlloc(&by_nccl_, static_cast<std::size_t>(size_bytes)) == ncclSuccess) return;
    (void)cudaGetLastError();
    by_nccl_ = nullptr;
    plain_.emplace(handle_->device(), size_bytes + kAlignmentBytes, owner);
  }

  ~NcclMemory() override {
    handle_->device().drain_watches();
    // An aborted communicator has taken its registrations with it.
    if (window_ != nullptr && !handle_->broken()) {
      report(ncclCommWindowDeregister(handle_->get(), window_), "giving back a window");
    }
    if (registration_ != nullptr && !handle_->broken()) {
      report(ncclCommDeregister(handle_->get(), registration_), "giving back a registration");
    }
    if (by_nccl_ != nullptr) report(ncclMemFree(by_nccl_), "freeing GPU memory");
  }

  std::byte* data() const {
    if (by_nccl_ != nullptr) return static_cast<std::byte*>(by_nccl_);
    if (!plain_) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(plain_->data());
    return plain_->data() + (kAlignmentBytes - static_cast<int64_t>(address % kAlignmentBytes)) % kAlignmentBytes;
  }

  /// Whether NCCL may be asked to register it: memory of cudaMalloc's has no handle to share.
  bool can_register() const { return by_nccl_ != nullptr; }

  /// Collective.
  void enroll() {
    const auto rounded =
        static_cast<std::size_t>((size_bytes_ + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
    handle_->settle(ncclCommWindowRegister(handle_->get(), by_nccl_, rounded, &window_, NCCL_WIN_COLL_SYMMETRIC),
                    "registering a window");
    if (window_ != nullptr) return;  // else this NCCL, or this machine, has no symmetric windows
    const ncclResult_t result = ncclCommRegister(handle_->get(), by_nccl_, rounded, &registration_);
    if (result == ncclInProgress) handle_->settle(result, "registering a buffer");
    if (result != ncclSuccess && result != ncclInProgress) registration_ = nullptr;  // it will copy, that is all
  }

 private:
  std::shared_ptr<NcclHandle> handle_;
  int64_t size_bytes_;
  Booking booking_;
  void* by_nccl_ = nullptr;
  std::optional<GpuMemory> plain_;
  ncclWindow_t window_ = nullptr;
  void* registration_ = nullptr;
};

}  // namespace

SymmetricBuffer allocate_for_nccl(const std::shared_ptr<NcclHandle>& handle, int64_t size_bytes, Category category,
                                  std::string_view owner) {
  std::unique_ptr<NcclMemory> memory;
  // Registering is collective, so all ranks must see it the same way.
  const auto said = gather_or_throw(handle->peers().exchange(), [&] {
    memory = std::make_unique<NcclMemory>(handle, size_bytes, category, owner);
    return fmt::format("{} {}", size_bytes, memory->can_register());
  });
  try {
    expect_same_sizes(handle->peers().exchange(), said, owner);
  } catch (const CommunicationError& error) {
    handle->fail(error.what());
  }
  if (memory->can_register() && std::count(said.begin(), said.end(), said[0]) == handle->peers().rank_count()) {
    memory->enroll();
  }
  std::byte* local = memory->data();
  std::vector<const std::byte*> peers(static_cast<std::size_t>(handle->peers().rank_count()), nullptr);
  peers[static_cast<std::size_t>(handle->peers().rank())] = local;
  return SymmetricBuffer(std::move(memory), local, std::move(peers), size_bytes);
}

}  // namespace aliquot
