#include "sharding/mpi/node_memory_mpi.h"

#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <sstream>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

// Identifies a window. Consists of the rank in MPI_COMM_WORLD that created the window, and of that rank's counter. All
// ranks of the window have the same value.
struct WindowId {
  int creator = 0, number = 0;
  friend auto operator<=>(const WindowId&, const WindowId&) = default;
};

// The windows of this process. MPI_Win_free() is collective, but each rank destroys its mapping independently. An
// unused window therefore stays in the registry until all its ranks have released it, even if its communicator no
// longer exists.
struct WindowRegistry {
  struct Entry {
    MPI_Win window = MPI_WIN_NULL;
    int rank_count = 0;
    bool in_use = true;
  };
  std::mutex mutex;
  std::map<WindowId, Entry> entries;
  int made_count = 0;
};

WindowRegistry& window_registry() {
  static auto* all = new WindowRegistry;  // never destroyed: mappings may be destroyed after static objects
  return *all;
}

struct WindowMapping final : NodeMapping {
  explicit WindowMapping(const WindowId& window_name) : name(window_name) {}
  ~WindowMapping() override {
    const std::lock_guard lock(window_registry().mutex);
    window_registry().entries[name].in_use = false;
  }
  WindowId name;
};

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Returns the reason why a window of this size cannot be allocated, or "". Must be called before the allocation. MPI
// would report the error only on the first rank, and the other ranks would hang.
std::string insufficient_memory_reason(std::size_t size_bytes) {
  constexpr std::size_t kMpiOverheadBytes = std::size_t{1} << 20;  // upper bound of the memory that MPI adds
  size_bytes += kMpiOverheadBytes;
  const int64_t available = available_memory_bytes();
  if (size_bytes > static_cast<std::size_t>(available)) return fmt::format("{} bytes are available", available);
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0) return {};  // without /dev/shm, MPI stores windows elsewhere
  const std::size_t free_bytes = static_cast<std::size_t>(room.f_bavail) * room.f_frsize;
  return size_bytes > free_bytes ? fmt::format("/dev/shm has {} bytes left", free_bytes) : std::string();
}

class WindowNodeMemory final : public NodeMemory {
 public:
  explicit WindowNodeMemory(MpiBootstrap& bootstrap) : bootstrap_(bootstrap) {}

  std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) override {
    free_unused_windows();
    const bool first = bootstrap_.rank() == 0;
    // MPI does not align the window to a page, so allocate one additional page.
    const std::size_t wanted = static_cast<std::size_t>(size_bytes) + page_bytes();
    const WindowId name =
        agree_on_window(first ? insufficient_memory_reason(wanted) : std::string(), size_bytes, owner);
    MPI_Win window = MPI_WIN_NULL;
    std::byte* base = nullptr;
    const int code = MPI_Win_allocate_shared(first ? static_cast<MPI_Aint>(wanted) : 0, 1, MPI_INFO_NULL,
                                             bootstrap_.comm(), &base, &window);
    throw_if_any_failed(bootstrap_.all_gather(code == MPI_SUCCESS ? std::string() : mpi_error_text(code)), size_bytes,
                        owner);
    auto mapping = register_window(window, name);
    mapping->writable = page_aligned_base(window);
    mapping->readable = mapping->writable;
    mapping->size_bytes = size_bytes;
    if (first) std::memset(mapping->writable, 0, static_cast<std::size_t>(size_bytes));
    bootstrap_.all_gather("zeroed");
    return mapping;
  }

  std::string_view describe() const override { return "MPI-3 window"; }

 private:
  // Called before the allocation. Checks on all ranks that memory is available, and returns the id that the first rank
  // created.
  WindowId agree_on_window(const std::string& problem, int64_t size_bytes, std::string_view owner) {
    WindowId own;
    {
      const std::lock_guard lock(window_registry().mutex);
      own.number = window_registry().made_count++;
    }
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &own.creator), "MPI_Comm_rank");
    throw_if_any_failed(bootstrap_.all_gather(problem), size_bytes, owner);
    WindowId name;
    std::istringstream(bootstrap_.all_gather(fmt::format("{} {}", own.creator, own.number))[0]) >> name.creator >>
        name.number;
    return name;
  }

  void throw_if_any_failed(const std::vector<std::string>& problems, int64_t size_bytes, std::string_view owner) const {
    for (int rank = 0; rank < bootstrap_.rank_count(); ++rank) {
      if (problems[rank].empty()) continue;
      throw UnavailableError(fmt::format("cannot allocate {} bytes of shared memory on this node for {}: rank {}: {}",
                                         size_bytes, owner, bootstrap_.global_rank(rank), problems[rank]));
    }
  }

  // Locks the window before registering it, because free_unused_windows() unlocks registered windows.
  std::unique_ptr<WindowMapping> register_window(MPI_Win window, const WindowId& name) {
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window), "MPI_Win_lock_all");
    const std::lock_guard lock(window_registry().mutex);
    window_registry().entries[name] = {.window = window, .rank_count = bootstrap_.rank_count()};
    return std::make_unique<WindowMapping>(name);
  }

  // Returns the first page boundary in the window. Throws UnavailableError if its offset differs between the ranks. MPI
  // implementations map complete pages, so the offsets are normally equal.
  std::byte* page_aligned_base(MPI_Win window) {
    MPI_Aint size_bytes = 0;
    int unit = 0;
    std::byte* base = nullptr;
    check_mpi(MPI_Win_shared_query(window, 0, &size_bytes, &unit, &base), "MPI_Win_shared_query");
    const std::size_t into_page = reinterpret_cast<uintptr_t>(base) % page_bytes();
    const std::size_t skipped = (page_bytes() - into_page) % page_bytes();
    for (const std::string& theirs : bootstrap_.all_gather(std::to_string(skipped))) {
      if (theirs != std::to_string(skipped))
        throw UnavailableError("the alignment of MPI's shared window differs between the ranks of this node");
    }
    return base + skipped;
  }

  // Frees each window that all its ranks have released, if all these ranks participate in this call. The windows may
  // belong to other communicators. All ranks free them in the same order, by id.
  void free_unused_windows() {
    std::map<WindowId, int> votes;
    for (const std::string& names : bootstrap_.all_gather(mpi_failed() ? std::string() : unused())) {
      std::istringstream words(names);
      for (WindowId name; words >> name.creator >> name.number;) ++votes[name];
    }
    for (const auto& [name, count] : votes) {
      MPI_Win window = remove_if_unused(name, count);
      if (window == MPI_WIN_NULL) continue;
      check_mpi(MPI_Win_unlock_all(window), "MPI_Win_unlock_all");
      check_mpi(MPI_Win_free(&window), "MPI_Win_free");
    }
  }

  // Removes the window from the registry and returns it, if it is registered on this rank and all its ranks have
  // released it. `vote_count` is the number of ranks that have released it.
  static MPI_Win remove_if_unused(const WindowId& name, int vote_count) {
    const std::lock_guard lock(window_registry().mutex);
    const auto found = window_registry().entries.find(name);
    if (found == window_registry().entries.end() || found->second.rank_count != vote_count) return MPI_WIN_NULL;
    const MPI_Win window = found->second.window;
    window_registry().entries.erase(found);
    return window;
  }

  static std::string unused() {
    const std::lock_guard lock(window_registry().mutex);
    std::string names;
    for (const auto& [name, entry] : window_registry().entries) {
      if (!entry.in_use) names += fmt::format("{} {} ", name.creator, name.number);
    }
    return names;
  }

  MpiBootstrap& bootstrap_;
};

}  // namespace

std::unique_ptr<NodeMemory> make_window_node_memory(MpiBootstrap& bootstrap) {
  return std::make_unique<WindowNodeMemory>(bootstrap);
}

std::unique_ptr<NodeMemory> make_process_node_memory(Bootstrap& bootstrap) {
  const char* variable = std::getenv("ALIQUOT_NODE_MEMORY");
  const std::string required = variable == nullptr ? "" : variable;
  if (!required.empty() && required != "memfd" && required != "window") {
    throw UsageError(fmt::format("invalid ALIQUOT_NODE_MEMORY '{}': expected memfd or window", required));
  }
  auto& mpi_bootstrap = dynamic_cast<MpiBootstrap&>(bootstrap);
  if (required == "window") return make_window_node_memory(mpi_bootstrap);
  auto memory = make_memfd_node_memory(bootstrap);
  if (memory != nullptr) return memory;
  if (required == "memfd") {
    throw UnavailableError(
        "ALIQUOT_NODE_MEMORY is memfd, but the ranks of this node may not open each other's /proc/PID/fd: use window");
  }
  return make_window_node_memory(mpi_bootstrap);
}

}  // namespace aliquot
