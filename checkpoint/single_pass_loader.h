#pragma once
// Loads a checkpoint while verifying it, in one pass over the file.

#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/file/page_plan.h"
#include "checkpoint/file/tile_parts.h"
#include "checkpoint/reader.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// A tensor of the state and the tensor of the checkpoint that fills it. If `entry` is null,
/// the loader sets the tensor to zero.
struct TensorMatch {
  const StateTensor* tensor = nullptr;
  const TensorEntry* entry = nullptr;
};

/// Loads and verifies a checkpoint together with the other ranks. One rank reads each page of the file, mostly a rank
/// that needs its data. It uses direct I/O if possible, hashes the page and copies its elements to the state. Then the
/// ranks combine their checksums and compare them with the manifest.
class SinglePassLoader {
 public:
  SinglePassLoader(CheckpointReader& reader, const std::vector<TensorMatch>& matches, Communicator& communicator);

  /// Collective. Throws the same CheckpointError on every rank if a checksum or the HDF5 structure does not match.
  void run(Ledger* ledger);

 private:
  /// A piece of this rank, and its bytes [begin, end) in the file. The elements of the piece before element `done` were
  /// filled, except for those in the ranges of `unread`.
  struct Target {
    int64_t begin, end;
    const StateTensor* tensor;
    const StatePiece* piece;
    int64_t done = 0;
    std::vector<std::pair<int64_t, int64_t>> unread;
  };

  PagePlan plan() const;
  std::vector<TilePart> own_parts(const PagePlan& plan) const;
  void read_parts(std::vector<TilePart>& parts, Ledger* ledger);
  void scatter(std::span<const std::byte> bytes, int64_t offset);
  void read_remaining(Ledger* ledger);

  CheckpointReader& reader_;
  Communicator& communicator_;
  std::vector<Target> targets_;  // sorted by file offset
  size_t first_target_ = 0;      // index of the first target that may contain the bytes that are read next
};

}  // namespace aliquot
