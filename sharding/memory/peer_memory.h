#pragma once
// Memory of one rank's device that its peers' loops can read.

#include <memory>
#include <optional>

#include "kernels/device/device.h"
#include "sharding/comm/bootstrap.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

/// What a communicator's allocate() stands on. Calls are collective and block. If the memory is not to be had on one rank,
/// all throw UnavailableError; if they ask for different sizes, CommunicationError.
class PeerMemory {
 public:
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  virtual ~PeerMemory() = default;

  virtual SymmetricBuffer allocate(int64_t size_bytes, Category category, std::string_view owner) = 0;
  virtual std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                                     std::string_view owner) = 0;
};

/// Host memory, booked in `ledger`. `bootstrap` is that of the ranks that share `memory`. All must outlive it, and the
/// ledger its buffers.
std::unique_ptr<PeerMemory> make_host_peer_memory(NodeMemory& memory, Ledger& ledger, Bootstrap& bootstrap);

}  // namespace aliquot
