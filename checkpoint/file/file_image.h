#pragma once
// The contents of state.h5 on one rank, before the file exists.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/page_plan.h"

namespace aliquot {

/// Maps each byte of the file to the rank that holds it and the rank that writes it. Bytes of tensors belong to the
/// ranks that hold the elements; all others (HDF5 metadata and padding) belong to rank 0. `catalogue` and `gaps` must
/// outlive the image.
class FileImage {
 public:
  /// `gaps` is empty on ranks other than 0.
  FileImage(const Catalogue& catalogue, int64_t file_bytes, std::span<const FileGap> gaps, int rank);

  /// Sends the bytes that this rank holds in pages of other ranks to the ranks that write these pages. Collective.
  void exchange_fragments(Communicator& communicator);

  /// Returns the pages that this rank writes.
  std::vector<PageRun> own_runs() const;
  /// Copies bytes [offset, offset + to.size()) of the file to `to`. Each byte must be held by this rank or be in a page
  /// that this rank writes.
  void read(std::span<std::byte> to, int64_t offset) const;

 private:
  void read_own(const FileExtent& extent, std::span<std::byte> to, int64_t offset) const;
  void read_received(std::span<std::byte> to, int64_t offset) const;

  const Catalogue& catalogue_;
  std::span<const FileGap> gaps_;
  int rank_;
  std::vector<FileExtent> extents_;  // the `source` of an extent is i for held piece i, and -1 - i for gap i
  PagePlan plan_;
  std::map<int64_t, std::string> received_;  // bytes from other ranks, by file offset
};

}  // namespace aliquot
