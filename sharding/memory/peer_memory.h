#pragma once
// Device memory that belongs to one rank and that kernels of other ranks can read.

#include <memory>
#include <optional>

#include "kernels/device/device.h"
#include "sharding/comm/bootstrap.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

/// Implements Communicator::allocate() and allocate_shared(). Calls are collective and block. If an allocation fails on
/// a rank, all ranks throw UnavailableError. If sizes must be equal but differ, all throw CommunicationError.
class PeerMemory {
 public:
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  virtual ~PeerMemory() = default;

  virtual SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) = 0;
  virtual std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                                     std::string_view owner) = 0;
};

/// Returns peer memory on the host, counted in `ledger`. The mapping of a buffer contains the parts of all ranks in
/// rank order, each rounded up to complete pages. `bootstrap` connects the ranks that share `memory`. All three
/// arguments must outlive the result. `ledger` must also outlive the buffers.
std::unique_ptr<PeerMemory> make_host_peer_memory(NodeMemory& memory, Ledger& ledger, Bootstrap& bootstrap);

}  // namespace aliquot
