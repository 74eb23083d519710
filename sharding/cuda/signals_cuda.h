#pragma once
// Signals for ranks that are threads of one process and compute on GPUs.

#include <array>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/signals.h"

namespace aliquot {

/// Returns signals for CUDA streams. arrive() records an event in the stream and posts the arrival on the board.
/// await_arrivals() blocks the calling thread until all ranks have posted their arrivals, compares the descriptions,
/// and makes the stream wait for the events. Host threads never wait for a GPU, and GPUs never poll memory.
///
/// A call blocks until the other ranks have issued the same collective. So ranks must make their calls in the same
/// order over all lanes, as with NCCL. If a rank is missing, the call itself throws.
///
/// `device` is a GPU, and `board` has Board::size_bytes() zeroed bytes. Collective over `bootstrap`; blocks.
std::unique_ptr<Signals> make_cuda_signals(Device& device, std::unique_ptr<NodeMapping> board, Bootstrap& bootstrap,
                                           const SignalsOptions& options);

}  // namespace aliquot
