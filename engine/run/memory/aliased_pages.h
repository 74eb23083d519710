#pragma once
// Second mappings of memory. Their protection can change without affecting the first mapping.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/run/memory/fault_names.h"

namespace aliquot {

/// Prepares [at, at + size_bytes) for AliasedPages. The range must consist of complete pages that were not yet written.
/// Replaces private memory with shared memory at the same addresses. Throws UnavailableError on failure.
void make_aliasable(std::byte* at, int64_t size_bytes);

/// How far before and after a buffer the slices of closed units may begin and end, if the buffer holds slices of
/// pointers (slice()).
struct SliceReach {
  int64_t before_bytes = 0, after_bytes = 0;
  bool empty() const { return before_bytes == 0 && after_bytes == 0; }
};

/// A second mapping of a buffer's pages, between guard ranges that always fault. Uses address space but no memory. Not
/// thread-safe. The buffer must outlive it.
class AliasedPages {
 public:
  enum class Protection : uint8_t { kNoAccess, kReadOnly, kReadWrite };

  /// `of` must be page-aligned and `size_bytes` a multiple of the page size. The initial protection is kNoAccess.
  /// `names`: the tensors in the buffer, at least one. The guard ranges include `slices`. Throws UnavailableError if
  /// the system refuses the mapping.
  AliasedPages(const std::byte* of, int64_t size_bytes, TensorRanges names, const SliceReach& slices = {});
  ~AliasedPages();
  AliasedPages(const AliasedPages&) = delete;
  AliasedPages& operator=(const AliasedPages&) = delete;

  std::byte* data() const { return data_; }
  /// Throws UnavailableError if the system refuses the change.
  void protect(Protection what);

  /// See FaultExplainer::Explain.
  bool explain(const void* address, FaultLine& line) const noexcept;

 private:
  int64_t size_bytes_;
  TensorRanges names_;
  bool has_slices_;
  int64_t reserved_bytes_;         // with the guard ranges
  std::byte* reserved_ = nullptr;  // start of the guard range before the pages
  std::byte* data_ = nullptr;
  std::atomic<Protection> protection_{Protection::kNoAccess};
};

}  // namespace aliquot
