#pragma once
// Loading while verifying: one pass over the file, into a state that is worth nothing yet.

#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/file/page_plan.h"
#include "checkpoint/file/tile_parts.h"
#include "checkpoint/reader.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// A tensor of the state and the one of the checkpoint that fills it, or null: zeros do.
struct TensorMatch {
  const StateTensor* tensor = nullptr;
  const TensorEntry* entry = nullptr;
};

/// Every page of the file is read, past the page cache, by one rank, mostly the one that wants it; hashed, and put where it
/// belongs. Then the ranks combine their hashes and compare them with the manifest.
class SinglePassLoader {
 public:
  SinglePassLoader(CheckpointReader& reader, const std::vector<TensorMatch>& matches, Communicator& communicator);

  /// Collective. Throws CheckpointError, on every rank the same, when a checksum or the structure does not match.
  void run(Ledger* ledger);

 private:
  /// A piece of this rank by its place in the file, and what of it no run of this rank brought, in elements.
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
  std::vector<Target> targets_;  // by place
  size_t first_target_ = 0;      // those before it are behind the parts read so far
};

}  // namespace aliquot
