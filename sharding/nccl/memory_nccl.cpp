#include "sharding/nccl/memory_nccl.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <vector>

#include "kernels/system/booking.h"
#include "kernels/system/log_message.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

constexpr int64_t kAlignmentBytes = NCCL_WIN_REQUIRED_ALIGNMENT;

void log_nccl_error(ncclResult_t result, const char* call) noexcept {
  if (result != ncclSuccess && result != ncclInProgress) {
    log_message("{} failed: {}", std::string_view(call), std::string_view(ncclGetErrorString(result)));
  }
}

/// The registration of memory with one NCCL communicator.
class NcclRegistration {
 public:
  /// Registers the memory as a symmetric window if all ranks have the same size, and NCCL has such windows. Otherwise
  /// registers a plain buffer. Collective.
  NcclRegistration(std::shared_ptr<NcclHandle> handle, void* memory, int64_t size_bytes, bool same_sizes)
      : handle_(std::move(handle)) {
    const auto rounded =
        static_cast<std::size_t>((size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
    if (same_sizes) {
      handle_->await_result(ncclCommWindowRegister(handle_->get(), memory, rounded, &window_, NCCL_WIN_COLL_SYMMETRIC),
                            "ncclCommWindowRegister()");
    }
    if (window_ != nullptr) return;
    const ncclResult_t result = ncclCommRegister(handle_->get(), memory, rounded, &registration_);
    if (result == ncclInProgress) handle_->await_result(result, "ncclCommRegister()");
    if (result != ncclSuccess && result != ncclInProgress)
      registration_ = nullptr;  // NCCL then copies through its own buffers
  }

  ~NcclRegistration() {
    handle_->device().wait_until_watchdogs_idle();
    if (handle_->broken()) return;  // aborting a communicator has already removed its registrations
    if (window_ != nullptr)
      log_nccl_error(ncclCommWindowDeregister(handle_->get(), window_), "ncclCommWindowDeregister()");
    if (registration_ != nullptr)
      log_nccl_error(ncclCommDeregister(handle_->get(), registration_), "ncclCommDeregister()");
  }

 private:
  std::shared_ptr<NcclHandle> handle_;
  ncclWindow_t window_ = nullptr;
  void* registration_ = nullptr;
};

/// The registrations of memory with the NCCL communicators of a group.
class NcclRegistrations final : public SymmetricBuffer::Backing {
 public:
  std::vector<std::unique_ptr<NcclRegistration>> of_handles;
};

/// One rank's memory, its registration with NCCL, and its entry in the ledger.
class NcclMemory final : public SymmetricBuffer::Backing {
 public:
  NcclMemory(std::shared_ptr<NcclHandle> handle, int64_t size_bytes, Category category, std::string_view owner)
      : handle_(std::move(handle)),
        size_bytes_(size_bytes),
        booking_(handle_->device().ledger(), size_bytes, category, owner) {
    if (size_bytes == 0) return;
    handle_->device().make_current();
    // ncclMemAlloc() fails if CUDA's virtual memory management is disabled (NCCL_CUMEM_ENABLE=0), or if there is not
    // enough memory. In the latter case, the plain allocation below throws a clear error.
    if (ncclMemAlloc(&nccl_memory_, static_cast<std::size_t>(size_bytes)) == ncclSuccess) return;
    (void)cudaGetLastError();
    nccl_memory_ = nullptr;
    fallback_memory_.emplace(handle_->device(), size_bytes + kAlignmentBytes, owner);
  }

  ~NcclMemory() override {
    handle_->device().drain();  // ncclMemFree() does not wait for work that uses the memory
    registrations_.reset();
    if (nccl_memory_ != nullptr) log_nccl_error(ncclMemFree(nccl_memory_), "ncclMemFree()");
  }

  std::byte* data() const {
    if (nccl_memory_ != nullptr) return static_cast<std::byte*>(nccl_memory_);
    if (!fallback_memory_) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(fallback_memory_->data());
    return fallback_memory_->data() +
           (kAlignmentBytes - static_cast<int64_t>(address % kAlignmentBytes)) % kAlignmentBytes;
  }

  /// What ranks must know of one another to register their memory: its size, and whether NCCL can register it. Plainly
  /// allocated memory has no handle that ranks could share.
  std::string describe() const { return fmt::format("{} {}", size_bytes_, nccl_memory_ != nullptr ? 1 : 0); }

  void keep(std::unique_ptr<NcclRegistrations> registrations) { registrations_ = std::move(registrations); }
  /// Registers the memory with the communicators of a group, and returns the registrations, or null if a rank of the
  /// group cannot register its memory. `of_ranks` has the describe() text of each of these ranks. Collective.
  std::unique_ptr<NcclRegistrations> register_with(NcclHandles group, const std::vector<std::string>& of_ranks) const {
    if (std::ranges::any_of(of_ranks, [](const std::string& rank) { return rank.ends_with(" 0"); })) return nullptr;
    const bool same_sizes = std::ranges::count(of_ranks, of_ranks[0]) == std::ssize(of_ranks);
    auto registrations = std::make_unique<NcclRegistrations>();
    for (const std::shared_ptr<NcclHandle>& handle : group)
      registrations->of_handles.push_back(
          std::make_unique<NcclRegistration>(handle, nccl_memory_, size_bytes_, same_sizes));
    return registrations;
  }

 private:
  std::shared_ptr<NcclHandle> handle_;
  int64_t size_bytes_;
  Booking booking_;
  void* nccl_memory_ = nullptr;
  std::optional<GpuMemory> fallback_memory_;
  std::unique_ptr<NcclRegistrations> registrations_;
};

}  // namespace

SymmetricBuffer allocate_for_nccl(NcclHandles group, int64_t own_bytes, RankSizes sizes, Category category,
                                  std::string_view owner) {
  const std::shared_ptr<NcclHandle>& handle = group.front();
  Bootstrap& bootstrap = handle->peers().bootstrap();
  std::unique_ptr<NcclMemory> memory;
  const auto of_ranks = gather_or_throw(bootstrap, [&] {
    memory = std::make_unique<NcclMemory>(handle, own_bytes, category, owner);
    return memory->describe();
  });
  try {
    if (sizes == RankSizes::kEqual) expect_same_sizes(bootstrap, of_ranks, owner);
  } catch (const CommunicationError& error) {
    handle->fail(error.what());
  }
  memory->keep(memory->register_with(group, of_ranks));
  std::byte* local = memory->data();
  std::vector<const std::byte*> peers(static_cast<std::size_t>(handle->peers().rank_count()), nullptr);
  peers[static_cast<std::size_t>(handle->peers().rank())] = local;
  return SymmetricBuffer(std::move(memory), local, std::move(peers), own_bytes);
}

SymmetricBuffer attach_to_nccl(NcclHandles group, const SymmetricBuffer& whole, std::span<const int> ranks) {
  const auto* memory = dynamic_cast<const NcclMemory*>(whole.backing());
  if (memory == nullptr) return whole.view(ranks);
  const auto of_ranks = group.front()->peers().bootstrap().all_gather(memory->describe());
  return whole.view(ranks, memory->register_with(group, of_ranks));
}

}  // namespace aliquot
