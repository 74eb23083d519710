#pragma once
// Telling and awaiting thread-ranks whose work is on GPUs, one or several.

#include <array>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/signals.h"

namespace aliquot {

/// Signals for CUDA streams of ranks that are threads of one process. To arrive is to record an event in the stream and
/// then to say so on the board; to await is to block the calling thread until all ranks have said so, compare what they
/// came to, and make the stream wait for their events. No thread waits for a GPU, and no GPU spins for a rank.
///   Ranks must therefore make their calls in one order over *all* lanes, as over NCCL: a rank's thread stands still at a
/// collective until the others have issued it too, however long the GPUs have still to go. A missing rank is thrown from
/// the call itself.
/// `board` is zeroed memory of Board::size_bytes(); taken over. Collective over `bootstrap`; blocks.
std::unique_ptr<Signals> make_cuda_signals(std::unique_ptr<NodeMapping> board, Bootstrap& bootstrap,
                                           const SignalsOptions& options);

}  // namespace aliquot
