#include "sharding/comm/board.h"
#include "sharding/comm/direct_communicator.h"
#include "sharding/cuda/peer_memory_cuda.h"
#include "sharding/cuda/signals_cuda.h"

namespace aliquot {

DirectParts cuda_direct_parts(double timeout_seconds) {
  DirectParts parts;
  parts.name = "threads, GPU memory";
  parts.make_node_memory = make_heap_node_memory;  // for the board and the mailboxes, which lie on the host
  parts.make_signals = [](Exchange& exchange, NodeMemory& memory, const SignalsOptions& options) {
    return make_cuda_signals(memory.map(Board::size_bytes(options.rank_count), "signals"), exchange, options);
  };
  parts.make_peer_memory = [](Exchange& exchange, NodeMemory&, Device& device) {
    return make_cuda_peer_memory(device, exchange);
  };
  parts.timeout_seconds = timeout_seconds;
  return parts;
}

}  // namespace aliquot
