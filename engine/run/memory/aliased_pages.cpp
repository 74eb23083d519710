#include "engine/run/memory/aliased_pages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/mman.h>

#include "engine/plan/schedule.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kGuardBytes = int64_t{1} << 20;  // least size of each guard range, before and after the pages

int64_t guard_bytes(int64_t slices_bytes) {
  return (std::max(slices_bytes, kGuardBytes) + kPlacePageBytes - 1) / kPlacePageBytes * kPlacePageBytes;
}

[[noreturn]] void refuse(const char* call) {
  throw UnavailableError(
      fmt::format("the system refused a second mapping of a buffer, which the checking mode needs ({}: {}): disable "
                  "the checking mode (EngineOptions::check, ALIQUOT_CHECK), or raise vm.max_map_count",
                  call, std::strerror(errno)));
}

std::size_t length(int64_t size_bytes) { return static_cast<std::size_t>(size_bytes); }

}  // namespace

void make_aliasable(std::byte* at, int64_t size_bytes) {
  if (size_bytes == 0) return;
  // An old size of 0 requests a second mapping. The kernel refuses it only for private memory, so memory for which it
  // succeeds is already shared.
  if (void* second = mremap(at, 0, 1, MREMAP_MAYMOVE); second != MAP_FAILED) {
    munmap(second, 1);
    return;
  }
  const void* mapped =
      mmap(at, length(size_bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) refuse("mmap");
}

AliasedPages::AliasedPages(const std::byte* of, int64_t size_bytes, TensorRanges names, const SliceReach& slices)
    : size_bytes_(size_bytes),
      names_(std::move(names)),
      has_slices_(!slices.empty()),
      reserved_bytes_(guard_bytes(slices.before_bytes) + size_bytes + guard_bytes(slices.after_bytes)) {
  const std::size_t reserved_bytes = length(reserved_bytes_);
  void* reserved = mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) refuse("mmap");
  std::byte* data = static_cast<std::byte*>(reserved) + guard_bytes(slices.before_bytes);
  const void* second = mremap(const_cast<std::byte*>(of), 0, length(size_bytes), MREMAP_MAYMOVE | MREMAP_FIXED, data);
  if (second == MAP_FAILED || mprotect(data, length(size_bytes), PROT_NONE) != 0) {
    const int error = errno;
    munmap(reserved, reserved_bytes);
    errno = error;
    refuse("mremap");
  }
  reserved_ = static_cast<std::byte*>(reserved);
  data_ = data;
}

AliasedPages::~AliasedPages() { munmap(reserved_, length(reserved_bytes_)); }

void AliasedPages::protect(Protection what) {
  if (protection_ == what) return;
  const int protection = what == Protection::kNoAccess   ? PROT_NONE
                         : what == Protection::kReadOnly ? PROT_READ
                                                         : PROT_READ | PROT_WRITE;
  if (mprotect(data_, length(size_bytes_), protection) != 0) refuse("mprotect");
  protection_ = what;
}

bool AliasedPages::explain(const void* address, FaultLine& line) const noexcept {
  const auto* at = static_cast<const std::byte*>(address);
  if (at < reserved_ || at >= reserved_ + reserved_bytes_) return false;
  line.add("aliquot: ");
  if (protection_ == Protection::kNoAccess) {
    names_.describe(line, at - data_, "accessed outside of an open scope");
    line.add(": access it only while the scope of unit.forward() or unit.backward() is open");
    return true;
  }
  const bool live = at >= data_ && at < data_ + size_bytes_;
  if (!live) {
    names_.describe(line, at - data_, "accessed");
    line.add(has_slices_ ? ": check the index; of the slices of a pointer, only that of the open unit is accessible"
                         : ": check the index, and whether the declared size is too small");
  } else {
    names_.describe(line, at - data_, "written");
    line.add(": a model must not write its parameters; only engine.step() changes them");
  }
  return true;
}

}  // namespace aliquot
