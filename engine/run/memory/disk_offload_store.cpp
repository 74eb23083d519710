// The offload store on disk: one unnamed file per rank, read and written with direct I/O.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <sys/mman.h>

#include "engine/run/memory/offload_stores.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kBounceBytes = int64_t{4} << 20;

int64_t page_begin(int64_t offset) { return offset / kPageBytes * kPageBytes; }
int64_t page_end(int64_t offset) { return page_begin(offset + kPageBytes - 1); }

/// A reserved address range, in which each address identifies a byte of the file. Accesses to the range fault.
class ReservedAddresses {
 public:
  explicit ReservedAddresses(int64_t size_bytes) : size_bytes_(static_cast<std::size_t>(size_bytes)) {
    void* mapped = mmap(nullptr, size_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
      throw UnavailableError(
          fmt::format("the system refused {} bytes of address space for offloaded data", size_bytes));
    base_ = static_cast<std::byte*>(mapped);
  }
  ~ReservedAddresses() { munmap(base_, size_bytes_); }
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;

  std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t size_bytes_;
};

struct FreeDeleter {
  void operator()(std::byte* pages) const { std::free(pages); }
};
using Pages = std::unique_ptr<std::byte, FreeDeleter>;

Pages make_pages(int64_t size_bytes) {
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, static_cast<std::size_t>(page_end(size_bytes)))));
  if (!pages)
    throw UnavailableError(fmt::format("cannot allocate {} bytes of host memory to access offloaded data", size_bytes));
  return pages;
}

class DiskOffloadStore final : public OffloadStore {
 public:
  DiskOffloadStore(File file, int64_t size_bytes)
      : file_(std::move(file)), size_bytes_(page_end(size_bytes)), addresses_(size_bytes_) {
    // Reserves disk space now, so that a full disk does not cause a failure during a step.
    if (!file_.allocate(size_bytes_)) file_.resize(size_bytes_);
    file_.set_direct(true);
  }

  // One call per slot is enough, because the system splits direct I/O into requests that run in parallel.
  void copy_in(Stream& io, std::byte* slot, int64_t offset, int64_t size_bytes) override {
    io.run([this, slot, offset, size_bytes] { file_.read(whole_pages(slot, size_bytes), offset); });
  }
  void copy_out(Stream& io, int64_t offset, const std::byte* slot, int64_t size_bytes) override {
    io.run([this, slot, offset, size_bytes] {
      file_.write(whole_pages(const_cast<std::byte*>(slot), size_bytes), offset);
    });
  }

  std::byte* base() const override { return addresses_.base(); }
  int64_t size_bytes() const override { return size_bytes_; }
  bool is_host_addressable() const override { return false; }
  bool is_zero_initialized() const override { return true; }

  void fetch(void* to, const std::byte* from, int64_t size_bytes) const override {
    for_each_window(from - base(), size_bytes, [&](Window window, std::byte* bytes) {
      file_.read({window.pages, static_cast<std::size_t>(window.page_bytes)}, window.page_offset);
      std::memcpy(static_cast<std::byte*>(to) + window.done, bytes, static_cast<std::size_t>(window.size_bytes));
    });
  }
  void store(std::byte* to, const void* from, int64_t size_bytes) const override {
    for_each_window(to - base(), size_bytes, [&](Window window, std::byte* bytes) {
      const std::span pages(window.pages, static_cast<std::size_t>(window.page_bytes));
      if (window.page_bytes != window.size_bytes)
        file_.read(pages, window.page_offset);  // the write below must keep the other bytes of these pages
      if (from == nullptr) {
        std::memset(bytes, 0, static_cast<std::size_t>(window.size_bytes));
      } else {
        std::memcpy(bytes, static_cast<const std::byte*>(from) + window.done,
                    static_cast<std::size_t>(window.size_bytes));
      }
      file_.write(pages, window.page_offset);
    });
  }
  void clear(std::byte* at, int64_t size_bytes) const override { store(at, nullptr, size_bytes); }

 private:
  /// A part of the requested bytes and the file pages that contain this part.
  struct Window {
    int64_t done, size_bytes;
    int64_t page_offset, page_bytes;
    std::byte* pages;
  };

  static std::span<std::byte> whole_pages(std::byte* slot, int64_t size_bytes) {
    return {slot, static_cast<std::size_t>(page_end(size_bytes))};
  }

  template <typename Visit>
  static void for_each_window(int64_t offset, int64_t size_bytes, Visit visit) {
    const Pages pages = make_pages(std::min(size_bytes, kBounceBytes) + 2 * kPageBytes);
    for (int64_t done = 0; done < size_bytes;) {
      const int64_t begin = offset + done, count = std::min(size_bytes - done, kBounceBytes);
      const int64_t first = page_begin(begin);
      visit({done, count, first, page_end(begin + count) - first, pages.get()}, pages.get() + (begin - first));
      done += count;
    }
  }

  mutable File file_;
  int64_t size_bytes_;
  ReservedAddresses addresses_;
};

}  // namespace

std::unique_ptr<OffloadStore> make_disk_offload_store(FileSystem& file_system, const std::string& directory,
                                                      int64_t size_bytes) {
  return std::make_unique<DiskOffloadStore>(Directory::open(file_system, directory).create_unnamed(), size_bytes);
}

}  // namespace aliquot
