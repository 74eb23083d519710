#pragma once
// The HDF5 structure of state.h5. HDF5 creates it in memory and never writes to the file: each byte of the file is
// written by one rank.

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

/// The unit of writing: each page of the file is written by one rank, and the file size is a multiple of it.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kFormatVersion = 1;

/// Bytes of the file that belong to no tensor: HDF5 metadata and padding.
struct FileGap {
  int64_t offset = 0;
  std::string bytes;
};

struct FileStructure {
  int64_t file_bytes = 0;     // size of the file, a multiple of kPageBytes
  std::vector<FileGap> gaps;  // sorted by offset; gaps and tensors together cover each byte of the file once
};

/// Lays out the tensors, which are sorted by path, as contiguous datasets, and sets the file_offset of each tensor that
/// has elements. Tensors of a page or more begin on a page boundary. `attributes`, step and format_version become
/// attributes of the root group. The result depends only on the arguments and the HDF5 version, so equal states give
/// equal bytes. Throws FaultError.
FileStructure make_structure(std::vector<TensorEntry>& tensors, int64_t step,
                             const std::map<std::string, Scalar>& attributes);

/// Reads bytes of a verified file. May throw, which makes the HDF5 operation fail.
using ReadFileRange = std::function<void(std::span<std::byte> to, int64_t offset)>;

/// Opens the file with HDF5 and checks that HDF5 sees what the manifest describes. Each tensor must be a contiguous
/// dataset with the shape, type and file offset in the manifest. It must be reached through hard links only, and have
/// no filters and no external or virtual storage. HDF5 reads metadata only, and only through `read`. Throws FaultError
/// with the difference.
void check_structure(const std::vector<TensorEntry>& tensors, int64_t file_bytes, const ReadFileRange& read);

/// Returns the version of the HDF5 library in use, such as "1.10.8".
std::string linked_hdf5_version();

}  // namespace aliquot
