#include <cstring>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/system/error.h"
#include "sharding/comm/gather_from_threads.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

/// Anonymous memory, unmapped by the destructor. Large allocations are aligned to huge pages and request them, which
/// reduces TLB misses.
class AnonymousPages {
 public:
  explicit AnonymousPages(int64_t size_bytes) : size_bytes_(size_bytes) {
    if (size_bytes_ == 0) return;
    const bool large = size_bytes >= kSmallestLarge;
    mapped_bytes_ = static_cast<std::size_t>(size_bytes + (large ? kHugePageBytes : 0));
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(mapped_);
    if (!large) return;
    data_ += -reinterpret_cast<uintptr_t>(mapped_) % kHugePageBytes;
    madvise(data_, static_cast<std::size_t>(size_bytes), MADV_HUGEPAGE);  // only a hint, so errors are ignored
  }
  ~AnonymousPages() {
    if (data_ != nullptr) munmap(mapped_, mapped_bytes_);
  }
  AnonymousPages(const AnonymousPages&) = delete;
  AnonymousPages& operator=(const AnonymousPages&) = delete;

  std::byte* data() const { return data_; }
  bool failed() const { return data_ == nullptr && size_bytes_ > 0; }

 private:
  static constexpr int64_t kSmallestLarge = 4 * kHugePageBytes;

  int64_t size_bytes_;
  std::size_t mapped_bytes_ = 0;
  void* mapped_ = nullptr;
  std::byte* data_ = nullptr;
};

struct HeapMapping final : NodeMapping {
  std::shared_ptr<AnonymousPages> pages;
};

class HeapNodeMemory final : public NodeMemory {
 public:
  explicit HeapNodeMemory(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) override {
    std::shared_ptr<AnonymousPages> pages;
    if (bootstrap_.rank() == 0) pages = std::make_shared<AnonymousPages>(size_bytes);
    pages = object_from_thread(bootstrap_, 0, std::move(pages));
    if (pages->failed())
      throw UnavailableError(fmt::format("cannot allocate {} bytes of host memory for {}", size_bytes, owner));
    auto mapping = std::make_unique<HeapMapping>();
    mapping->pages = pages;
    mapping->writable = pages->data();
    mapping->readable = pages->data();
    mapping->size_bytes = size_bytes;
    return mapping;
  }

  std::string_view describe() const override { return "one heap"; }

 private:
  Bootstrap& bootstrap_;
};

}  // namespace

std::unique_ptr<NodeMemory> make_heap_node_memory(Bootstrap& bootstrap) {
  return std::make_unique<HeapNodeMemory>(bootstrap);
}

}  // namespace aliquot
