#pragma once
// The bytes of state.h5 as this rank can give them, before there is a file.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/page_plan.h"

namespace aliquot {

/// Knows, from what all ranks hold and where the tensors lie, who holds and who writes each byte of the file: tensors'
/// bytes belong to their holders, all others (HDF5's own, padding) to rank 0. `catalogue` and `gaps` outlive it.
class FileImage {
 public:
  /// `gaps` are rank 0's alone.
  FileImage(const Catalogue& catalogue, int64_t file_bytes, std::span<const FileGap> gaps, int rank);

  /// Sends and receives the parts of pages that one rank holds and another writes. Collective.
  void exchange_fragments(Communicator& communicator);

  /// The pages this rank writes.
  std::vector<PageRun> own_runs() const;
  /// Bytes [offset, offset + to.size()) of pages that this rank writes.
  void read(std::span<std::byte> to, int64_t offset) const;

 private:
  void read_own(const FileExtent& extent, std::span<std::byte> to, int64_t offset) const;
  void read_received(std::span<std::byte> to, int64_t offset) const;

  const Catalogue& catalogue_;
  std::span<const FileGap> gaps_;
  int rank_;
  std::vector<FileExtent> extents_;  // source: a held_piece, or -1 - a gap
  PagePlan plan_;
  std::map<int64_t, std::string> received_;  // by offset in the file
};

}  // namespace aliquot
