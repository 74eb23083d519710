#pragma once
// The HDF5 structure of state.h5: made without a file, so that every byte of the file has one writer of ours.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file/tensor_entry.h"
#include "sharding/state.h"

namespace aliquot {

/// The unit in which ranks write: a page of the file has one writer, and the file is whole pages.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kFormatVersion = 1;

/// Bytes of the file that belong to no tensor: HDF5's own, and padding.
struct FileGap {
  int64_t offset = 0;
  std::string bytes;
};

struct FileStructure {
  int64_t file_bytes = 0;     // a multiple of kPageBytes
  std::vector<FileGap> gaps;  // in order; with the tensors they tile the file exactly once
};

/// Lays the tensors out, in order of path, as plain contiguous datasets, each with elements given its file_offset;
/// tensors of a page or more begin on a page. `attributes` go on the root, with step and format_version. Depends on
/// nothing but its arguments and the HDF5 version, so the same state gives the same bytes. Throws FaultError.
FileStructure make_structure(std::vector<TensorEntry>& tensors, int64_t step,
                             const std::map<std::string, Scalar>& attributes);

/// Reads bytes of a file that were verified before; throws to refuse.
using ReadFileRange = std::function<void(std::span<std::byte> to, int64_t offset)>;

/// Has HDF5 open the bytes and proves that it sees the same as we do: each tensor a contiguous dataset behind hard
/// links alone, of exactly that shape, type and file offset, with no filter and no external or virtual storage. Throws
/// FaultError saying what differs. HDF5 reads nothing but these bytes, and no data.
void check_structure(const std::vector<TensorEntry>& tensors, int64_t file_bytes, const ReadFileRange& read);

/// The version of the HDF5 library in use, "1.10.8".
std::string linked_hdf5_version();

}  // namespace aliquot
