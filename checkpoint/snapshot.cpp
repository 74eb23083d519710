#include "checkpoint/snapshot.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <sys/mman.h>

#include "kernels/system/error.h"
#include "kernels/system/non_temporal_copy.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;

bool is_saved(const StatePiece& piece) { return !piece.copy && piece.count > 0; }

}  // namespace

int64_t snapshot_bytes(const State& state) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : state.tensors) {
    for (const StatePiece& piece : tensor.pieces) {
      if (is_saved(piece)) bytes += piece.count * element_bytes(tensor.dtype);
    }
  }
  return bytes;
}

void Snapshot::FreeDeleter::operator()(std::byte* memory) const { std::free(memory); }

Snapshot::Snapshot(int64_t capacity_bytes, Ledger* ledger) : capacity_bytes_(capacity_bytes) {
  if (capacity_bytes == 0) return;
  if (ledger != nullptr) {
    booking_ = std::make_unique<Booking>(*ledger, capacity_bytes, Category::kStaging, "checkpoint snapshot");
  }
  const size_t rounded = (static_cast<size_t>(capacity_bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, rounded)));
  if (!memory_) {
    throw UnavailableError(fmt::format(
        "cannot allocate {} bytes for a copy of the shard: free memory, or use save() in place of BackgroundSaver",
        capacity_bytes));
  }
  ::madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // a failure is harmless
  // Touch the pages now: a page fault during take() would cost as much as the copy of the page.
  std::memset(memory_.get(), 0, static_cast<size_t>(capacity_bytes));
}

void Snapshot::take(const State& state) {
  if (const int64_t needed = snapshot_bytes(state); needed > capacity_bytes_) {
    throw UsageError(fmt::format("the state has {} bytes, but the snapshot was created for {}: create a larger one",
                                 needed, capacity_bytes_));
  }
  state_.step = state.step;
  state_.scalars = state.scalars;
  state_.tensors.clear();
  std::byte* at = memory_.get();
  for (const StateTensor& from : state.tensors) {
    StateTensor& to = state_.tensors.emplace_back(StateTensor{from.path, from.shape, from.dtype, {}, nullptr});
    for (const StatePiece& piece : from.pieces) {
      if (!is_saved(piece)) continue;
      const int64_t bytes = piece.count * element_bytes(from.dtype);
      if (from.access == nullptr && !has_gaps_in_memory(piece)) {
        non_temporal_copy(at, piece.bytes, static_cast<size_t>(bytes));
      } else {
        read_piece(from, piece, 0, {at, static_cast<size_t>(bytes)});
      }
      to.pieces.push_back({piece.offset, piece.count, at, false, piece.run, piece.stride});
      at += bytes;
    }
  }
}

}  // namespace aliquot
