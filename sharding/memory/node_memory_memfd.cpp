// Node memory for ranks that are processes. One process creates a memfd, and the other processes of the node open it
// through /proc.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {
namespace {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  bool open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(int descriptor, std::size_t size_bytes, int protection)
      : address_(mmap(nullptr, size_bytes, protection, MAP_SHARED, descriptor, 0)), size_bytes_(size_bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, MAP_FAILED)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (valid()) munmap(address_, size_bytes_);
  }
  bool valid() const { return address_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = MAP_FAILED;
  std::size_t size_bytes_ = 0;
};

struct MemfdMapping final : NodeMapping {
  MemfdMapping(Mapping write_side, Mapping read_side, int64_t bytes)
      : write_side_(std::move(write_side)), read_side_(std::move(read_side)) {
    writable = write_side_.data();
    readable = read_side_.data();
    size_bytes = bytes;
  }

 private:
  Mapping write_side_, read_side_;
};

// Identifies the memfd of the first rank. Other ranks check the device and inode numbers, because the same process id
// may belong to a different process in their container.
struct MemfdLocation {
  long process = 0;
  int descriptor = -1;
  unsigned long device = 0, inode = 0;

  std::string text() const { return fmt::format("{} {} {} {}", process, descriptor, device, inode); }
  static MemfdLocation parse(const std::string& text) {
    MemfdLocation location;
    if (std::sscanf(text.c_str(), "%ld %d %lu %lu", &location.process, &location.descriptor, &location.device,
                    &location.inode) != 4) {
      location.descriptor = -1;
    }
    return location;
  }
};

std::string errno_message(std::string_view call) { return fmt::format("{}: {}", call, std::strerror(errno)); }

// Creates a memfd of fixed size that only this user can open. The kernel frees it when the last process that uses it
// exits.
Descriptor create_memfd(int64_t size_bytes, std::string* problem) {
  if (const int64_t available = available_memory_bytes(); size_bytes > available) {
    *problem = fmt::format("{} bytes are available", available);
    return {};
  }
  Descriptor memory(memfd_create("aliquot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.open()) {
    *problem = errno_message("memfd_create");
    return {};
  }
  if (fchmod(memory.number(), S_IRUSR | S_IWUSR) != 0 || ftruncate(memory.number(), size_bytes) != 0 ||
      fcntl(memory.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    *problem = errno_message("setting the size of a memfd");
    return {};
  }
  return memory;
}

std::string location_of(const Descriptor& memory) {
  struct stat status {};
  if (!memory.open() || fstat(memory.number(), &status) != 0) return {};
  return MemfdLocation{getpid(), memory.number(), status.st_dev, status.st_ino}.text();
}

Descriptor open_peer_memfd(const MemfdLocation& location, std::string* problem) {
  const std::string path = fmt::format("/proc/{}/fd/{}", location.process, location.descriptor);
  Descriptor memory(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!memory.open() || fstat(memory.number(), &status) != 0) {
    *problem = errno_message("opening " + path);
    return {};
  }
  if (status.st_dev != location.device || status.st_ino != location.inode) {
    *problem = path + " is a different file on this rank: the ranks do not share /proc";
    return {};
  }
  return memory;
}

class MemfdNodeMemory final : public NodeMemory {
 public:
  explicit MemfdNodeMemory(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) override {
    std::string problem;
    auto mapping = try_map(size_bytes, &problem);
    if (mapping != nullptr) return mapping;
    throw UnavailableError(
        fmt::format("cannot allocate {} bytes of shared memory on this node for {}: {}", size_bytes, owner, problem));
  }

  std::string_view describe() const override { return "memfd"; }

  /// Like map(), but if the mapping fails on any rank, all ranks return null and set `problem` to the same text.
  std::unique_ptr<NodeMapping> try_map(int64_t size_bytes, std::string* problem) {
    const std::size_t mapped_bytes = round_to_pages(size_bytes);
    const bool first = bootstrap_.rank() == 0;
    std::string own_problem;
    Descriptor memory;
    if (first) memory = create_memfd(static_cast<int64_t>(mapped_bytes), &own_problem);
    const MemfdLocation location = MemfdLocation::parse(bootstrap_.all_gather(location_of(memory))[0]);
    if (!first && location.descriptor >= 0) memory = open_peer_memfd(location, &own_problem);
    Mapping write_side = map_side(memory, mapped_bytes, PROT_READ | PROT_WRITE, &own_problem);
    Mapping read_side = map_side(memory, mapped_bytes, PROT_READ, &own_problem);
    // The first rank keeps its descriptor open until all ranks have opened and mapped the memfd.
    const auto answers = bootstrap_.all_gather(own_problem);
    for (int rank = 0; rank < bootstrap_.rank_count(); ++rank) {
      if (answers[rank].empty()) continue;
      *problem = fmt::format("rank {}: {}", bootstrap_.global_rank(rank), answers[rank]);
      return nullptr;
    }
    return std::make_unique<MemfdMapping>(std::move(write_side), std::move(read_side), size_bytes);
  }

 private:
  static std::size_t round_to_pages(int64_t size_bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t pages = (static_cast<std::size_t>(size_bytes) + page - 1) / page;
    return (pages == 0 ? 1 : pages) * page;
  }

  static Mapping map_side(const Descriptor& memory, std::size_t size_bytes, int protection, std::string* problem) {
    if (!memory.open()) return {};
    Mapping side(memory.number(), size_bytes, protection);
    if (!side.valid() && problem->empty()) *problem = errno_message("mmap");
    return side;
  }

  Bootstrap& bootstrap_;
};

}  // namespace

std::unique_ptr<NodeMemory> make_memfd_node_memory(Bootstrap& bootstrap) {
  auto memory = std::make_unique<MemfdNodeMemory>(bootstrap);
  std::string problem;
  if (memory->try_map(1, &problem) == nullptr) return nullptr;
  return memory;
}

}  // namespace aliquot
