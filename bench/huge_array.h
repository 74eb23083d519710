#pragma once
// Memory for operands, as the engine allocates it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <sys/mman.h>

namespace aliquot {

/// Zeroed memory that is aligned to huge pages and requests them.
class HugeArray {
 public:
  HugeArray() = default;
  explicit HugeArray(int64_t size_bytes) {
    constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
    const std::size_t bytes = (static_cast<std::size_t>(size_bytes) / kHugePageBytes + 1) * kHugePageBytes;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    madvise(data_.get(), bytes, MADV_HUGEPAGE);  // only a hint, so errors are ignored
    std::memset(data_.get(), 0, static_cast<std::size_t>(size_bytes));
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace aliquot
