#include "checkpoint/file/hdf5_structure.h"

#include <algorithm>
#include <fmt/format.h>

#include "checkpoint/file/hdf5_backend.h"
#include "checkpoint/file/hdf5_handle.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

// HDF5 allocates space for metadata in blocks of this size, so that metadata is not scattered between the tensors.
constexpr hsize_t kMetadataBlockBytes = 64 << 10;
// Above this number HDF5 moves attributes from the object header to a heap. Checkpoints have far fewer scalars.
constexpr unsigned kCompactAttributes = 4096;

Hdf5Handle creation_list(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose, "create a property list");
  // Disables object times, because with them two saves of the same state would differ.
  hdf5_checked(H5Pset_obj_track_times(list.get(), false), "disable object times");
  return list;
}

Hdf5Handle create_file(SparseMemoryBackend& backend) {
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create a property list");
  const hid_t list = access.get();
  if (!set_file_backend(list, backend)) throw FaultError("HDF5 did not accept the in-memory file driver");
  // The file format of HDF5 1.8 (2008). Its metadata has checksums, and every later version of HDF5 can read it.
  hdf5_checked(H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_V18), "choose the file format");
  hdf5_checked(H5Pset_alignment(list, kPageBytes, kPageBytes), "set the alignment");
  hdf5_checked(H5Pset_meta_block_size(list, kMetadataBlockBytes), "set the metadata block size");
  hdf5_checked(H5Pset_small_data_block_size(list, 0), "set the small data block size");
  Hdf5Handle creation = creation_list(H5P_FILE_CREATE);
  hdf5_checked(H5Pset_attr_phase_change(creation.get(), kCompactAttributes, 0), "keep attributes compact");
  return {H5Fcreate("state.h5", H5F_ACC_TRUNC, creation.get(), list), H5Fclose, "create the structure"};
}

struct AttributeValue {
  Hdf5Handle space, type;
  const void* bytes;
};

Hdf5Handle simple_space(std::span<const int64_t> shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), H5Sclose, "create a dataspace"};
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose, "create a dataspace"};
}

AttributeValue attribute_value(const Scalar& value) {
  const auto copy = [](hid_t type) { return Hdf5Handle(H5Tcopy(type), H5Tclose, "copy a type"); };
  const auto one = [] { return simple_space({}); };
  const auto many = [](size_t count) { return simple_space(std::vector<int64_t>{static_cast<int64_t>(count)}); };
  if (const auto* integer = std::get_if<int64_t>(&value)) return {one(), copy(H5T_STD_I64LE), integer};
  if (const auto* real = std::get_if<double>(&value)) return {one(), copy(H5T_IEEE_F64LE), real};
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    return {many(list->size()), copy(H5T_STD_I64LE), list->data()};
  }
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    return {many(list->size()), copy(H5T_IEEE_F64LE), list->data()};
  }
  const auto& text = std::get<std::string>(value);
  Hdf5Handle type = copy(H5T_C_S1);
  hdf5_checked(H5Tset_size(type.get(), text.size() + 1), "set the size of a string");  // includes the terminating NUL
  hdf5_checked(H5Tset_cset(type.get(), H5T_CSET_UTF8), "mark a string as UTF-8");
  return {one(), std::move(type), text.c_str()};
}

void write_attribute(hid_t file, const std::string& name, const Scalar& scalar) {
  const AttributeValue value = attribute_value(scalar);
  const std::string what = fmt::format("write attribute {}", printable(name));
  Hdf5Handle creation(H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose, what);
  hdf5_checked(H5Pset_char_encoding(creation.get(), H5T_CSET_UTF8), what);
  Hdf5Handle attribute(H5Acreate2(file, name.c_str(), value.type.get(), value.space.get(), creation.get(), H5P_DEFAULT),
                       H5Aclose, what);
  const hssize_t count = H5Sget_simple_extent_npoints(value.space.get());
  if (count > 0) hdf5_checked(H5Awrite(attribute.get(), value.type.get(), value.bytes), what);
  attribute.close(what);
}

Hdf5Handle open_group(hid_t file, const std::string& path, hid_t links, hid_t groups) {
  const std::string what = fmt::format("create group {}", printable(path));
  const htri_t exists = H5Lexists(file, path.c_str(), H5P_DEFAULT);
  if (hdf5_checked(exists, what) > 0) return {H5Gopen2(file, path.c_str(), H5P_DEFAULT), H5Gclose, what};
  return {H5Gcreate2(file, path.c_str(), links, groups, H5P_DEFAULT), H5Gclose, what};
}

/// Creates the groups above a tensor one by one. H5Pset_create_intermediate_group would give them object times.
void make_groups(hid_t file, const std::string& path, hid_t links, hid_t groups) {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    open_group(file, path.substr(0, slash), links, groups);
  }
}

struct CreationLists {
  Hdf5Handle links, groups, datasets;
};

CreationLists creation_lists() {
  CreationLists lists;
  lists.links = {H5Pcreate(H5P_LINK_CREATE), H5Pclose, "create a property list"};
  hdf5_checked(H5Pset_char_encoding(lists.links.get(), H5T_CSET_UTF8), "mark names as UTF-8");
  lists.groups = creation_list(H5P_GROUP_CREATE);
  lists.datasets = creation_list(H5P_DATASET_CREATE);
  hdf5_checked(H5Pset_layout(lists.datasets.get(), H5D_CONTIGUOUS), "set contiguous storage");
  hdf5_checked(H5Pset_alloc_time(lists.datasets.get(), H5D_ALLOC_TIME_EARLY), "set early allocation");
  hdf5_checked(H5Pset_fill_time(lists.datasets.get(), H5D_FILL_TIME_NEVER), "disable fill values");
  return lists;
}

void make_dataset(hid_t file, TensorEntry& tensor, const CreationLists& lists) {
  const std::string what = fmt::format("create dataset {}", printable(tensor.path));
  const Hdf5Handle type = hdf5_type(tensor.dtype), space = simple_space(tensor.shape);
  Hdf5Handle dataset(H5Dcreate2(file, tensor.path.c_str(), type.get(), space.get(), lists.links.get(),
                                lists.datasets.get(), H5P_DEFAULT),
                     H5Dclose, what);
  tensor.file_offset = -1;
  if (tensor.size_bytes > 0) {  // for an empty dataset H5Dget_offset returns its error value
    const haddr_t offset = H5Dget_offset(dataset.get());
    if (offset == HADDR_UNDEF) throw FaultError(fmt::format("HDF5 could not {}: it assigned no file offset", what));
    tensor.file_offset = static_cast<int64_t>(offset);
  }
  dataset.close(what);
}

std::vector<FileGap> find_gaps(const std::vector<TensorEntry>& tensors, const SparseMemoryBackend& backend,
                               int64_t file_bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.size_bytes > 0) ranges.emplace_back(tensor.file_offset, tensor.file_offset + tensor.size_bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  ranges.emplace_back(file_bytes, file_bytes);
  std::vector<FileGap> gaps;
  int64_t end = 0;
  for (const auto& [begin, next_end] : ranges) {
    if (begin < end) throw FaultError("HDF5 assigned overlapping file offsets to two datasets");
    if (begin > end) {
      gaps.push_back({end, std::string(static_cast<size_t>(begin - end), '\0')});
      backend.read(end, begin - end, reinterpret_cast<std::byte*>(gaps.back().bytes.data()));
    }
    end = next_end;
  }
  return gaps;
}

}  // namespace

FileStructure make_structure(std::vector<TensorEntry>& tensors, int64_t step,
                             const std::map<std::string, Scalar>& attributes) {
  const Hdf5Lock lock;
  SparseMemoryBackend backend;
  {
    Hdf5Handle file = create_file(backend);
    const CreationLists lists = creation_lists();
    write_attribute(file.get(), "format_version", kFormatVersion);
    write_attribute(file.get(), "step", step);
    for (const auto& [name, value] : attributes) write_attribute(file.get(), name, value);
    for (TensorEntry& tensor : tensors) {
      make_groups(file.get(), tensor.path, lists.links.get(), lists.groups.get());
      make_dataset(file.get(), tensor, lists);
    }
    file.close("close the structure");
  }
  FileStructure structure;
  structure.file_bytes = (backend.end_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
  structure.gaps = find_gaps(tensors, backend, structure.file_bytes);
  return structure;
}

std::string linked_hdf5_version() {
  const Hdf5Lock lock;
  return hdf5_version();
}

}  // namespace aliquot
