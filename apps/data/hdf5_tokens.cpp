// Reads the dataset `tokens` of an HDF5 file. The HDF5 library finds the offset of the dataset in the file. Then the
// file is mapped.
#include <algorithm>
#include <iterator>
#include <string>

#include "apps/data/mapped_file.h"
#include "apps/data/mapped_tokens.h"
#include "checkpoint/file/hdf5_handle.h"
#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw UsageError(file.string() + ": " + why + ".");
}

TokenLayout layout_of(const std::filesystem::path& file, hid_t dataset) {
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose, "read the extents of 'tokens'");
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose, "read the type of 'tokens'");
  const Hdf5Handle properties(H5Dget_create_plist(dataset), H5Pclose, "read the layout of 'tokens'");
  if (H5Sget_simple_extent_ndims(space.get()) != 1) refuse(file, "the dataset 'tokens' must have one dimension");
  const size_t bytes = H5Tget_size(type.get());
  if (H5Tget_class(type.get()) != H5T_INTEGER || bytes > 8 || (bytes & (bytes - 1)) != 0 ||
      (bytes > 1 && H5Tget_order(type.get()) != H5T_ORDER_LE)) {
    refuse(file, "the dataset 'tokens' must have little-endian integers of 1, 2, 4 or 8 bytes");
  }
  const int64_t count = H5Sget_simple_extent_npoints(space.get());
  if (count < 1) refuse(file, "the dataset 'tokens' is empty");
  const haddr_t offset = H5Dget_offset(dataset);
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS || H5Pget_external_count(properties.get()) > 0 ||
      offset == HADDR_UNDEF) {
    refuse(file,
           "the dataset 'tokens' is not contiguous and cannot be mapped: convert it with h5repack -l CONTI -f NONE");
  }
  return {.offset_bytes = static_cast<int64_t>(offset),
          .count = count,
          .bytes_per_token = static_cast<int>(bytes),
          .is_signed = H5Tget_sign(type.get()) == H5T_SGN_2,
          .unit = "integers of the dataset 'tokens'"};
}

/// Refuses a dataset that is a link into another file, because only `path` is mapped.
void refuse_external_storage(const std::filesystem::path& path, hid_t dataset) {
  std::string name(4096, '\0');
  const ssize_t length = H5Fget_name(dataset, name.data(), name.size());
  name.resize(static_cast<size_t>(std::clamp<ssize_t>(length, 0, std::ssize(name) - 1)));
  std::error_code ignored;
  if (std::filesystem::equivalent(path, name, ignored)) return;
  refuse(path, "the dataset 'tokens' is a link into " + printable(name) + ": use that file");
}

TokenLayout find_tokens(const std::filesystem::path& path) {
  { const MappedFile can_be_mapped(path); }  // throws for a pipe, on which H5Fopen() would block
  const Hdf5Lock lock;
  try {
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, "open it");
    const Hdf5Handle dataset(H5Dopen2(file.get(), "tokens", H5P_DEFAULT), H5Dclose, "find its dataset 'tokens'");
    refuse_external_storage(path, dataset.get());
    return layout_of(path, dataset.get());
  } catch (const FaultError& error) {
    throw UsageError(path.string() + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<TokenSource> open_hdf5_tokens(const std::filesystem::path& file) {
  return open_mapped_tokens(file, find_tokens(file));
}

}  // namespace aliquot
