#pragma once
// Host memory that the ranks of one node share.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "sharding/comm/bootstrap.h"
#include "sharding/memory/symmetric_buffer.h"

namespace aliquot {

/// A memory range that all ranks of a node have mapped. The destructor unmaps it.
struct NodeMapping : SymmetricBuffer::Backing {
  std::byte* writable = nullptr;
  const std::byte* readable = nullptr;  // the same bytes; mapped read-only if possible
  int64_t size_bytes = 0;
};

/// Creates such mappings. Each communicator has its own object. map() is collective over the ranks of the bootstrap and
/// blocks.
class NodeMemory {
 public:
  NodeMemory() = default;
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  virtual ~NodeMemory() = default;

  /// Returns zeroed, page-aligned memory. `size_bytes` must be the same on all ranks. Throws UnavailableError on all
  /// ranks if the allocation fails on any rank.
  virtual std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) = 0;
  virtual std::string_view describe() const = 0;  // "one heap", "memfd", "MPI-3 window"
};

/// For ranks that are threads of one process. All ranks use the same addresses, so that ThreadSanitizer detects races
/// between ranks. The bootstrap must outlive it.
std::unique_ptr<NodeMemory> make_heap_node_memory(Bootstrap& bootstrap);

/// For ranks that are processes of one node. The first rank creates a memfd, and the others open it through
/// /proc/PID/fd. Each rank maps it twice: writable and read-only. Nothing appears in /dev/shm, and no memory leaks when
/// a process dies. Returns null on all ranks if a rank may not open it (different user, restricted /proc).
std::unique_ptr<NodeMemory> make_memfd_node_memory(Bootstrap& bootstrap);

}  // namespace aliquot
