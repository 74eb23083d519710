#pragma once
// Loads a checkpoint while verifying it, in one pass over the file.

#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/file/page_layout.h"
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
  /// A piece of this rank, whose elements are in bytes [begin, end) of the file. The elements of the piece before its
  /// element `done` were filled, except for those in the ranges of `unread`.
  struct Target {
    int64_t begin, end;
    int64_t tensor_begin;  // position of the tensor in the file
    const StateTensor* tensor;
    const StatePiece* piece;
    int64_t done = 0;
    std::vector<std::pair<int64_t, int64_t>> unread;
  };
  /// Whole pages that this rank reads. `part` is the index of their TilePart.
  struct OwnPages {
    std::vector<FileRange> ranges;
    std::vector<size_t> part;
    std::vector<TilePart> parts;
  };

  PageLayout layout() const;
  OwnPages own_pages(const PageLayout& layout) const;
  void add_window(const PageLayout& layout, const PageRun& window, OwnPages& pages) const;
  void read_pages(OwnPages& pages, Ledger* ledger);
  void scatter(std::span<const std::byte> bytes, int64_t offset);
  void read_remaining(Ledger* ledger);
  std::span<const std::byte> read_elements(const Target& target, int64_t first, int64_t last,
                                           std::span<std::byte> to) const;

  CheckpointReader& reader_;
  Communicator& communicator_;
  std::vector<Target> targets_;  // sorted by file offset
  size_t first_target_ = 0;      // index of the first target that may contain the bytes that are read next
};

}  // namespace aliquot
