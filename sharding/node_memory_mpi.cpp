#include "sharding/node_memory_mpi.h"

#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <sstream>
#include <unistd.h>

#include "kernels/error.h"

namespace aliquot {
namespace {

// MPI frees a window collectively, a mapping goes when its rank likes: this is where it waits for the others.
struct Windows {
  struct Entry {
    MPI_Win window = MPI_WIN_NULL;
    bool in_use = true;
  };
  std::mutex mutex;
  std::map<int, Entry> entries;  // by number, the same on all ranks
  int next_number = 0;
};

struct WindowMapping final : NodeMapping {
  WindowMapping(std::shared_ptr<Windows> all, int window_number) : windows(std::move(all)), number(window_number) {}
  ~WindowMapping() override {
    const std::lock_guard lock(windows->mutex);
    windows->entries[number].in_use = false;
  }
  std::shared_ptr<Windows> windows;
  int number;
};

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

class WindowNodeMemory final : public NodeMemory {
 public:
  explicit WindowNodeMemory(MpiExchange& exchange) : exchange_(exchange), windows_(std::make_shared<Windows>()) {}

  std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) override {
    free_what_nobody_uses();
    const bool first = exchange_.rank() == 0;
    // The base is aligned to nothing in particular, so there is a page to spare.
    const std::size_t wanted = static_cast<std::size_t>(size_bytes) + page_bytes();
    MPI_Win window = MPI_WIN_NULL;
    std::byte* base = nullptr;
    const int code = MPI_Win_allocate_shared(first ? static_cast<MPI_Aint>(wanted) : 0, 1, MPI_INFO_NULL,
                                             exchange_.comm(), &base, &window);
    refuse_if_any(code, size_bytes, owner);
    auto mapping = adopt(window);
    mapping->writable = page_aligned_base(window);
    mapping->readable = mapping->writable;
    mapping->size_bytes = size_bytes;
    if (first) std::memset(mapping->writable, 0, static_cast<std::size_t>(size_bytes));
    exchange_.all("zeroed");
    return mapping;
  }

  std::string_view describe() const override { return "MPI-3 window"; }

 private:
  void refuse_if_any(int code, int64_t size_bytes, std::string_view owner) {
    const auto answers = exchange_.all(code == MPI_SUCCESS ? std::string() : mpi_error_text(code));
    for (int rank = 0; rank < exchange_.rank_count(); ++rank) {
      if (answers[rank].empty()) continue;
      throw UnavailableError(
          fmt::format("{}: no {} bytes of memory that the ranks of this node share (rank {} of the node: {})", owner,
                      size_bytes, rank, answers[rank]));
    }
  }

  std::unique_ptr<WindowMapping> adopt(MPI_Win window) {
    const std::lock_guard lock(windows_->mutex);
    const int number = windows_->next_number++;
    windows_->entries[number].window = window;
    return std::make_unique<WindowMapping>(windows_, number);
  }

  // The same place on every rank, counted from the first byte that is at a page's start for the first rank: whether it is
  // for the others too is up to MPI, which maps whole pages.
  std::byte* page_aligned_base(MPI_Win window) {
    MPI_Aint size_bytes = 0;
    int unit = 0;
    std::byte* base = nullptr;
    check_mpi(MPI_Win_shared_query(window, 0, &size_bytes, &unit, &base), "MPI_Win_shared_query");
    const std::size_t into_page = reinterpret_cast<uintptr_t>(base) % page_bytes();
    const std::size_t skipped = (page_bytes() - into_page) % page_bytes();
    for (const std::string& theirs : exchange_.all(std::to_string(skipped))) {
      if (theirs != std::to_string(skipped))
        throw UnavailableError("MPI's shared window is not aligned alike on all ranks");
    }
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window), "MPI_Win_lock_all");
    return base + skipped;
  }

  void free_what_nobody_uses() {
    std::map<int, int> votes;
    for (const std::string& numbers : exchange_.all(unused())) {
      std::istringstream words(numbers);
      for (int number = 0; words >> number;) ++votes[number];
    }
    for (const auto& [number, count] : votes) {
      if (count != exchange_.rank_count()) continue;
      MPI_Win window = MPI_WIN_NULL;
      {
        const std::lock_guard lock(windows_->mutex);
        window = windows_->entries[number].window;
        windows_->entries.erase(number);
      }
      check_mpi(MPI_Win_unlock_all(window), "MPI_Win_unlock_all");
      check_mpi(MPI_Win_free(&window), "MPI_Win_free");
    }
  }

  std::string unused() {
    const std::lock_guard lock(windows_->mutex);
    std::string numbers;
    for (const auto& [number, entry] : windows_->entries) {
      if (!entry.in_use) numbers += fmt::format("{} ", number);
    }
    return numbers;
  }

  MpiExchange& exchange_;
  std::shared_ptr<Windows> windows_;
};

}  // namespace

std::unique_ptr<NodeMemory> make_window_node_memory(MpiExchange& exchange) {
  return std::make_unique<WindowNodeMemory>(exchange);
}

std::unique_ptr<NodeMemory> make_process_node_memory(Exchange& exchange) {
  const char* variable = std::getenv("ALIQUOT_NODE_MEMORY");
  const std::string asked = variable == nullptr ? "" : variable;
  if (!asked.empty() && asked != "memfd" && asked != "window") {
    throw UsageError(fmt::format("ALIQUOT_NODE_MEMORY is '{}': it can be memfd or window", asked));
  }
  auto& over_mpi = dynamic_cast<MpiExchange&>(exchange);
  if (asked == "window") return make_window_node_memory(over_mpi);
  auto memory = make_memfd_node_memory(exchange);
  if (memory != nullptr) return memory;
  if (asked == "memfd") {
    throw UnavailableError(
        "ALIQUOT_NODE_MEMORY is memfd, and the ranks of this node may not open each other's /proc/PID/fd");
  }
  return make_window_node_memory(over_mpi);
}

}  // namespace aliquot
