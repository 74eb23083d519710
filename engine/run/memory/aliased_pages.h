#pragma once
// Memory seen a second time, at addresses that can be protected without disturbing the first.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/run/memory/fault_names.h"

namespace aliquot {

/// Lets [at, at + size_bytes), whole pages of zeros that nothing was written to, be aliased: memory that only this process
/// has becomes memory that it could share, at the same addresses. Throws UnavailableError.
void make_aliasable(std::byte* at, int64_t size_bytes);

/// The pages of a buffer at addresses of their own, between stretches that always fault. Costs addresses, no memory. One
/// thread at a time; the memory must outlive it.
class AliasedPages {
 public:
  enum class Protection : uint8_t { kNoAccess, kReadOnly, kReadWrite };

  /// `of` is the start of a page and `size_bytes` are whole pages. Allows nothing. `names`: the tensors in it, at least one.
  /// Throws UnavailableError when the system gives no second mapping.
  AliasedPages(const std::byte* of, int64_t size_bytes, TensorRanges names);
  ~AliasedPages();
  AliasedPages(const AliasedPages&) = delete;
  AliasedPages& operator=(const AliasedPages&) = delete;

  std::byte* data() const { return data_; }
  /// Throws UnavailableError when the system refuses.
  void protect(Protection what);

  /// As FaultExplainer::Explain.
  bool explain(const void* address, FaultLine& line) const noexcept;

 private:
  int64_t size_bytes_;
  TensorRanges names_;
  std::byte* reserved_ = nullptr;  // with the stretches around it
  std::byte* data_ = nullptr;
  std::atomic<Protection> protection_{Protection::kNoAccess};
};

}  // namespace aliquot
