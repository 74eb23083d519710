#pragma once
// The contents of state.h5 on one rank, before the file exists.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/page_layout.h"

namespace aliquot {

/// Maps each byte of the file to the rank that holds it and the rank that writes it. Bytes of tensors belong to the
/// ranks that hold the elements; all others (HDF5 metadata and padding) belong to rank 0. `catalogue` and `gaps` must
/// outlive the image.
class FileImage {
 public:
  /// `gaps` is empty on ranks other than 0.
  FileImage(const Catalogue& catalogue, int64_t file_bytes, std::span<const FileGap> gaps, int rank);

  int rank() const { return rank_; }
  const PageLayout& layout() const { return layout_; }

  /// Sends the bytes of the fragments that this rank holds to the ranks that write them. The bytes received by an
  /// earlier call are lost. Before that, calls `before`, which may throw an Error: then all ranks throw it. Collective.
  void exchange(std::span<const Fragment> fragments, Communicator& communicator,
                const std::function<void()>& before = {});

  /// Copies bytes [offset, offset + to.size()) of the file to `to`. Each byte must be held by this rank, or have been
  /// received by the last exchange().
  void read(std::span<std::byte> to, int64_t offset) const;

 private:
  struct Received {
    int64_t begin = 0;  // file offset
    size_t at = 0;      // position in received_bytes_
  };

  void exchange_round(std::span<const Fragment> fragments, Communicator& communicator,
                      const std::function<void()>& before);
  void read_own(const FileExtent& extent, std::span<std::byte> to) const;
  void read_received(std::span<std::byte> to, int64_t offset) const;

  const Catalogue& catalogue_;
  std::span<const FileGap> gaps_;
  int rank_;
  PageLayout layout_;               // the `source` of an owner is i for held piece i, and -1 - i for gap i
  std::vector<Received> received_;  // bytes from other ranks, sorted by file offset
  std::string received_bytes_;
};

}  // namespace aliquot
