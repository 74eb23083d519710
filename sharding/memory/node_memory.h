#pragma once
// Host memory that all ranks of one node reach.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "sharding/comm/bootstrap.h"
#include "sharding/memory/symmetric_buffer.h"

namespace aliquot {

/// One range that all ranks of a node have mapped. Unmapped when destroyed.
struct NodeMapping : SymmetricBuffer::Backing {
  std::byte* writable = nullptr;
  const std::byte* readable = nullptr;  // the same bytes; read-only where the kind of memory can say so
  int64_t size_bytes = 0;
};

/// Makes such ranges. One per communicator; map() is collective over the ranks of its bootstrap and blocks.
class NodeMemory {
 public:
  NodeMemory() = default;
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  virtual ~NodeMemory() = default;

  /// Zeroed and page-aligned; all ranks ask for the same size. Throws UnavailableError on all ranks if any cannot have it.
  virtual std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) = 0;
  virtual std::string_view describe() const = 0;  // "one heap", "memfd", "MPI-3 window"
};

/// Ranks that are threads of one process: plain memory at one address, so that a race between ranks is a race that a
/// thread sanitizer sees. The bootstrap must outlive it.
std::unique_ptr<NodeMemory> make_heap_node_memory(Bootstrap& bootstrap);

/// Ranks that are processes of one node: one memfd, made by the first rank, opened by the others through
/// /proc/PID/fd and mapped twice, for writing and read-only. Nothing appears in /dev/shm and nothing is left behind,
/// however a process ends. Null, on all ranks, where any rank is refused that (another user, a hardened /proc).
std::unique_ptr<NodeMemory> make_memfd_node_memory(Bootstrap& bootstrap);

}  // namespace aliquot
