#include "sharding/comm/board.h"
#include "sharding/comm/direct_communicator.h"
#include "sharding/cuda/peer_memory_cuda.h"
#include "sharding/cuda/signals_cuda.h"

namespace aliquot {

DirectTransport cuda_direct_transport(double timeout_seconds) {
  DirectTransport transport;
  transport.name = "threads, GPU memory";
  transport.make_node_memory = make_heap_node_memory;  // the board and the mailboxes are in host memory
  transport.make_signals = [](Bootstrap& bootstrap, NodeMemory& memory, Device& device, const SignalsOptions& options) {
    auto board = memory.map(Board::size_bytes(options.rank_count), "signals");
    return make_cuda_signals(device, std::move(board), bootstrap, options);
  };
  transport.make_peer_memory = [](Bootstrap& bootstrap, NodeMemory&, Device& device) {
    return make_cuda_peer_memory(device, bootstrap);
  };
  transport.timeout_seconds = timeout_seconds;
  return transport;
}

}  // namespace aliquot
