// Reads the datasets `tokens` and `loss_ranges` of an HDF5 file. The HDF5 library finds their offsets in the file. Then
// InputFile reads them.
#include <algorithm>
#include <fmt/format.h>
#include <string>

#include "apps/data/input_file.h"
#include "apps/data/stored_tokens.h"
#include "checkpoint/file/hdf5_handle.h"
#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw UsageError(file.string() + ": " + why + ".");
}

[[noreturn]] void refuse_layout(const std::filesystem::path& file, const char* name) {
  refuse(file, fmt::format("the dataset '{}' is not contiguous: convert it with h5repack -l CONTI "
                           "-f NONE",
                           name));
}

/// Refuses a dataset whose data is not in one piece of the file. Must precede every other access to the dataset: HDF5
/// opens the source files of a virtual dataset to find its extents.
void check_storage(const std::filesystem::path& file, hid_t dataset, const char* name) {
  const Hdf5Handle properties(H5Dget_create_plist(dataset), H5Pclose, "read the layout of a dataset");
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS || H5Pget_external_count(properties.get()) > 0)
    refuse_layout(file, name);
}

/// Returns the value of the attribute vocabulary_size, which `aliquot data` writes, or 0 if there is none.
int64_t recorded_vocabulary(const std::filesystem::path& file, hid_t dataset) {
  constexpr const char* kName = "vocabulary_size";
  if (H5Aexists(dataset, kName) <= 0) return 0;
  const Hdf5Handle attribute(H5Aopen(dataset, kName, H5P_DEFAULT), H5Aclose, "open the attribute vocabulary_size");
  const Hdf5Handle space(H5Aget_space(attribute.get()), H5Sclose, "read the extents of vocabulary_size");
  const Hdf5Handle type(H5Aget_type(attribute.get()), H5Tclose, "read the type of vocabulary_size");
  int64_t value = 0;
  const bool is_integer = H5Tget_class(type.get()) == H5T_INTEGER && H5Sget_simple_extent_npoints(space.get()) == 1;
  if (!is_integer || H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0 || value < 1)
    refuse(file, "the attribute vocabulary_size of 'tokens' must be a positive integer");
  return value;
}

/// Returns the text of the attribute tokenizer_sha256, which `aliquot data` writes. Returns an empty text if the
/// attribute is missing or is not a text of fixed length.
std::string recorded_tokenizer(hid_t dataset) {
  constexpr const char* kName = "tokenizer_sha256";
  constexpr size_t kLargest = 128;
  if (H5Aexists(dataset, kName) <= 0) return {};
  const Hdf5Handle attribute(H5Aopen(dataset, kName, H5P_DEFAULT), H5Aclose, "open the attribute tokenizer_sha256");
  const Hdf5Handle space(H5Aget_space(attribute.get()), H5Sclose, "read the extents of tokenizer_sha256");
  const Hdf5Handle type(H5Aget_type(attribute.get()), H5Tclose, "read the type of tokenizer_sha256");
  const size_t size = H5Tget_size(type.get());
  const bool is_text = H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0;
  const bool has_one = H5Sget_simple_extent_npoints(space.get()) == 1;
  std::string text(std::min(size, kLargest), '\0');
  if (!is_text || !has_one || size > kLargest || H5Aread(attribute.get(), type.get(), text.data()) < 0) return {};
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

TokenLayout layout_of(const std::filesystem::path& file, hid_t dataset) {
  check_storage(file, dataset, "tokens");
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose, "read the extents of 'tokens'");
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose, "read the type of 'tokens'");
  if (H5Sget_simple_extent_ndims(space.get()) != 1) refuse(file, "the dataset 'tokens' must have one dimension");
  const size_t bytes = H5Tget_size(type.get());
  if (H5Tget_class(type.get()) != H5T_INTEGER || bytes > 8 || (bytes & (bytes - 1)) != 0 ||
      (bytes > 1 && H5Tget_order(type.get()) != H5T_ORDER_LE)) {
    refuse(file, "the dataset 'tokens' must have little-endian integers of 1, 2, 4 or 8 bytes");
  }
  const int64_t count = H5Sget_simple_extent_npoints(space.get());
  if (count < 1) refuse(file, "the dataset 'tokens' is empty");
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) refuse_layout(file, "tokens");
  return {.offset_bytes = static_cast<int64_t>(offset),
          .count = count,
          .bytes_per_token = static_cast<int>(bytes),
          .is_signed = H5Tget_sign(type.get()) == H5T_SGN_2,
          .unit = "integers of the dataset 'tokens'",
          .vocabulary = recorded_vocabulary(file, dataset),
          .tokenizer = recorded_tokenizer(dataset)};
}

/// HDF5 calls this function before it follows a link into another file. Stores the name of that file in `found`, and
/// makes HDF5 fail. Opening the other file could block, and only the file of --data is read.
herr_t stop_at_link(const char* /*from_file*/, const char* /*from_group*/, const char* to_file,
                    const char* /*to_object*/, unsigned* /*flags*/, hid_t /*properties*/, void* found) noexcept {
  *static_cast<std::string*>(found) = to_file;
  return -1;
}

/// `name` is the name of a dataset in the root group.
Hdf5Handle open_dataset(const std::filesystem::path& path, hid_t file, const char* name) {
  std::string link;
  const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose, "make a property list");
  if (H5Pset_elink_cb(access.get(), stop_at_link, &link) < 0) refuse(path, "HDF5 cannot refuse links");
  const hid_t dataset = H5Dopen2(file, name, access.get());
  if (!link.empty())
    refuse(path, fmt::format("the dataset '{}' is a link into {}: use that file", name, printable(link)));
  return Hdf5Handle(dataset, H5Dclose, fmt::format("find its dataset '{}'", name));
}

/// Returns the layout of the dataset loss_ranges, or nothing if there is none.
std::optional<RangeLayout> find_loss_ranges(const std::filesystem::path& path, hid_t file) {
  constexpr const char* kName = "loss_ranges";
  if (hdf5_checked(H5Lexists(file, kName, H5P_DEFAULT), "find a dataset") == 0) return std::nullopt;
  const Hdf5Handle dataset = open_dataset(path, file, kName);
  check_storage(path, dataset.get(), kName);
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose, "read the extents of 'loss_ranges'");
  const Hdf5Handle type(H5Dget_type(dataset.get()), H5Tclose, "read the type of 'loss_ranges'");
  hsize_t extents[2] = {};
  const bool is_table = H5Sget_simple_extent_ndims(space.get()) == 2 &&
                        H5Sget_simple_extent_dims(space.get(), extents, nullptr) == 2 && extents[1] == 2;
  if (!is_table || H5Tequal(type.get(), H5T_STD_I64LE) <= 0)
    refuse(path, "the dataset 'loss_ranges' must have the shape N x 2 and little-endian signed 64-bit integers");
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (extents[0] > 0 && offset == HADDR_UNDEF) refuse_layout(path, kName);
  return RangeLayout{extents[0] == 0 ? 0 : static_cast<int64_t>(offset), static_cast<int64_t>(extents[0])};
}

/// Returns the place of the dataset tokenizer_json, or an empty place if there is none.
TokenLayout::Text find_tokenizer(const std::filesystem::path& path, hid_t file) {
  constexpr const char* kName = "tokenizer_json";
  if (hdf5_checked(H5Lexists(file, kName, H5P_DEFAULT), "find a dataset") == 0) return {};
  const Hdf5Handle dataset = open_dataset(path, file, kName);
  check_storage(path, dataset.get(), kName);
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose, "read the extents of 'tokenizer_json'");
  const Hdf5Handle type(H5Dget_type(dataset.get()), H5Tclose, "read the type of 'tokenizer_json'");
  if (H5Sget_simple_extent_ndims(space.get()) != 1 || H5Tequal(type.get(), H5T_STD_U8LE) <= 0)
    refuse(path, "the dataset 'tokenizer_json' must have one dimension and unsigned 8-bit integers");
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) return {};
  return {static_cast<int64_t>(offset), H5Sget_simple_extent_npoints(space.get())};
}

TokenLayout find_tokens(const std::filesystem::path& path) {
  { const InputFile can_be_opened(path); }  // throws for a pipe, on which H5Fopen() would block
  const Hdf5Lock lock;
  try {
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, "open it");
    const Hdf5Handle dataset = open_dataset(path, file.get(), "tokens");
    TokenLayout layout = layout_of(path, dataset.get());
    layout.loss_ranges = find_loss_ranges(path, file.get());
    layout.tokenizer_json = find_tokenizer(path, file.get());
    return layout;
  } catch (const FaultError& error) {
    throw UsageError(path.string() + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<TokenSource> open_hdf5_tokens(const std::filesystem::path& file) {
  return open_stored_tokens(file, find_tokens(file));
}

}  // namespace aliquot
