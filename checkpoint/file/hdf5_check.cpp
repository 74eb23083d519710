#include <fmt/format.h>

#include "checkpoint/file/hdf5_backend.h"
#include "checkpoint/file/hdf5_handle.h"
#include "checkpoint/file/hdf5_structure.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// A read-only file of `file_bytes` bytes.
class ReadOnlyBackend final : public Hdf5FileBackend {
 public:
  ReadOnlyBackend(int64_t file_bytes, const ReadFileRange& read) : file_bytes_(file_bytes), read_(read) {}

  int64_t end_bytes() const override { return file_bytes_; }
  void read(int64_t offset, int64_t count, std::byte* to) const override {
    if (offset < 0 || count < 0 || offset > file_bytes_ || count > file_bytes_ - offset)
      refuse("read past the end of the file");
    read_({to, static_cast<size_t>(count)}, offset);
  }
  void write(int64_t, int64_t, const std::byte*) override { refuse("write to a file opened for reading"); }
  void truncate(int64_t) override { refuse("resize a file opened for reading"); }

 private:
  [[noreturn]] static void refuse(const char* what) { throw FaultError(fmt::format("HDF5 tried to {}", what)); }
  int64_t file_bytes_;
  const ReadFileRange& read_;
};

[[noreturn]] void refuse(const TensorEntry& tensor, std::string_view what) {
  throw FaultError(fmt::format("dataset {} {}", printable(tensor.path), what));
}

void check_links(hid_t file, const TensorEntry& tensor) {
  for (size_t end = tensor.path.find('/');; end = tensor.path.find('/', end + 1)) {
    H5L_info_t link{};
    const herr_t found = H5Lget_info(file, tensor.path.substr(0, end).c_str(), &link, H5P_DEFAULT);
    if (found < 0) refuse(tensor, "is absent");
    if (link.type != H5L_TYPE_HARD) refuse(tensor, "is reached through a soft or external link");
    if (end == std::string::npos) return;
  }
}

void check_storage(hid_t dataset, const TensorEntry& tensor) {
  const Hdf5Handle creation(H5Dget_create_plist(dataset), H5Pclose, "read the properties of a dataset");
  if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS) refuse(tensor, "is not contiguous");
  if (H5Pget_external_count(creation.get()) != 0) refuse(tensor, "stores its data in another file");
  if (H5Pget_nfilters(creation.get()) != 0) refuse(tensor, "uses a filter, such as compression");
}

void check_dataset(hid_t file, const TensorEntry& tensor) {
  check_links(file, tensor);
  const Hdf5Handle dataset(H5Dopen2(file, tensor.path.c_str(), H5P_DEFAULT), H5Dclose,
                           fmt::format("open dataset {}", printable(tensor.path)));
  check_storage(dataset.get(), tensor);
  const Hdf5Handle type(H5Dget_type(dataset.get()), H5Tclose, "read the type of a dataset");
  if (H5Tequal(type.get(), hdf5_type(tensor.dtype).get()) <= 0) {
    refuse(tensor, fmt::format("does not have the type little-endian {}", name(tensor.dtype)));
  }
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose, "read the shape of a dataset");
  std::vector<hsize_t> extents(kShapeRankLimit);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0 || rank > kShapeRankLimit || H5Sget_simple_extent_type(space.get()) == H5S_NULL)
    refuse(tensor, fmt::format("has no shape, or more than {} dimensions", kShapeRankLimit));
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  extents.resize(static_cast<size_t>(rank));
  if (!std::equal(extents.begin(), extents.end(), tensor.shape.begin(), tensor.shape.end(),
                  [](hsize_t a, int64_t b) { return a == static_cast<hsize_t>(b); })) {
    refuse(tensor, "does not have the shape that the manifest gives");
  }
  if (tensor.size_bytes > 0 && H5Dget_offset(dataset.get()) != static_cast<haddr_t>(tensor.file_offset)) {
    refuse(tensor, "is not at the offset that the manifest gives");
  }
}

}  // namespace

void check_structure(const std::vector<TensorEntry>& tensors, int64_t file_bytes, const ReadFileRange& read) {
  const Hdf5Lock lock;
  ReadOnlyBackend backend(file_bytes, read);
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create a property list");
  if (!set_file_backend(access.get(), backend)) throw FaultError("HDF5 did not accept the in-memory file driver");
  const Hdf5Handle file(H5Fopen("state.h5", H5F_ACC_RDONLY, access.get()), H5Fclose, "open the file");
  for (const TensorEntry& tensor : tensors) check_dataset(file.get(), tensor);
}

}  // namespace aliquot
