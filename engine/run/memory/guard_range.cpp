#include "engine/run/memory/guard_range.h"

#include <algorithm>
#include <fmt/format.h>
#include <sys/mman.h>

#include "engine/run/memory/fault_names.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kPageBytes = 4096;
/// Minimum distance between tensors, so that an access beyond the end of one is not attributed to the next.
constexpr int64_t kLeastBeyondBytes = int64_t{1} << 20;

}  // namespace

struct GuardRange::Names {
  explicit Names(const GuardRange& range) : source(&range, explain) {}

  static bool explain(const void* owner, const void* address, FaultLine& line) noexcept {
    const auto& range = *static_cast<const GuardRange*>(owner);
    const auto offset = static_cast<const std::byte*>(address) - range.base_;
    if (offset < 0 || offset >= range.size_bytes_) return false;
    line.add("aliquot: ");
    range.names_->tensors.describe(line, offset, "accessed outside of an open scope");
    line.add(
        ": access it only while the scope of unit.forward() or unit.backward() is open (in a split "
        "backward: of the part that may access it), and keep no copy of its address");
    return true;
  }

  TensorRanges tensors;
  FaultExplainer source;
};

GuardRange::GuardRange(const std::vector<Tensor>& tensors) : names_(std::make_unique<Names>(*this)) {
  int64_t size_bytes = 0, begin_bytes = 0;  // begin_bytes: of the first of the tensors that adjoin
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].adjoins) begin_bytes = size_bytes;
    names_->tensors.add(tensors[i].name, size_bytes, tensors[i].size_bytes);
    size_bytes += tensors[i].size_bytes;
    if (i + 1 < tensors.size() && tensors[i + 1].adjoins) continue;
    const int64_t used_bytes = std::max<int64_t>(size_bytes - begin_bytes, 1);
    const int64_t pages = (used_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    size_bytes = begin_bytes + pages + std::max(pages, kLeastBeyondBytes);
  }
  if (size_bytes == 0) return;
  void* base = mmap(nullptr, static_cast<std::size_t>(size_bytes), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw UnavailableError(
        fmt::format("the system refused {} bytes of address space for guard addresses of parameters", size_bytes));
  base_ = static_cast<std::byte*>(base);
  size_bytes_ = size_bytes;
}

GuardRange::~GuardRange() {
  names_.reset();
  if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(size_bytes_));
}

std::byte* GuardRange::address(std::size_t tensor) const { return base_ + names_->tensors.offset_bytes(tensor); }

}  // namespace aliquot
