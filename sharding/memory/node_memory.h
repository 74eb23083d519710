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
  const std::byte* readable = nullptr;  // the same memory as at `writable`; mapped read-only if possible
  int64_t size_bytes = 0;
};

/// Creates memory mappings that the ranks of a node share. Each communicator has its own object. map() is collective
/// over the ranks of the bootstrap and blocks.
class NodeMemory {
 public:
  NodeMemory() = default;
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  virtual ~NodeMemory() = default;

  /// Returns zeroed, page-aligned memory. `size_bytes` must be the same on all ranks. Throws UnavailableError on all
  /// ranks if the allocation fails on any rank.
  virtual std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) = 0;
  virtual std::string_view describe() const = 0;  // "one heap", "memfd" or "MPI-3 window"
};

/// Returns node memory for ranks that are threads of one process. All ranks use the same addresses, so that
/// ThreadSanitizer detects races between ranks. The bootstrap must outlive the result.
std::unique_ptr<NodeMemory> make_heap_node_memory(Bootstrap& bootstrap);

/// Returns node memory for ranks that are processes on one node. The first rank creates a memfd, and the other ranks
/// open it through /proc/PID/fd. Each rank maps it twice: writable and read-only. No file appears in /dev/shm, and the
/// kernel frees the memory even if processes are killed. Returns null on all ranks if one rank cannot open the memfd,
/// for example because of a different user or a restricted /proc.
std::unique_ptr<NodeMemory> make_memfd_node_memory(Bootstrap& bootstrap);

}  // namespace aliquot
