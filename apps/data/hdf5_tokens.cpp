// The dataset `tokens` of an HDF5 file: found by the library once, then read as mapped memory.
#include <hdf5.h>
#include <mutex>
#include <string>

#include "apps/data/mapped_tokens.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

// One handle of the library's, closed on every way out.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw UsageError("--data " + file.string() + ": " + why + ".");
}

TokenLayout layout_of(const std::filesystem::path& file, hid_t dataset) {
  const Handle space(H5Dget_space(dataset), H5Sclose), type(H5Dget_type(dataset), H5Tclose);
  const Handle how(H5Dget_create_plist(dataset), H5Pclose);
  if (!space || !type || !how) refuse(file, "the dataset 'tokens' cannot be examined; the file may be damaged");
  if (H5Sget_simple_extent_ndims(space.get()) != 1) refuse(file, "the dataset 'tokens' is to have one dimension");
  const size_t bytes = H5Tget_size(type.get());
  if (H5Tget_class(type.get()) != H5T_INTEGER || bytes > 8 || (bytes & (bytes - 1)) != 0 ||
      (bytes > 1 && H5Tget_order(type.get()) != H5T_ORDER_LE)) {
    refuse(file, "the dataset 'tokens' is to hold little-endian integers");
  }
  const int64_t count = H5Sget_simple_extent_npoints(space.get());
  if (count < 1) refuse(file, "the dataset 'tokens' is empty");
  const haddr_t offset = H5Dget_offset(dataset);
  if (H5Pget_layout(how.get()) != H5D_CONTIGUOUS || H5Pget_external_count(how.get()) > 0 || offset == HADDR_UNDEF) {
    refuse(
        file,
        "the dataset 'tokens' is chunked or compressed and cannot be mapped; h5repack -l CONTI -f NONE makes it plain");
  }
  return {.offset_bytes = static_cast<int64_t>(offset),
          .count = count,
          .bytes_per_token = static_cast<int>(bytes),
          .is_signed = H5Tget_sign(type.get()) == H5T_SGN_2,
          .unit = "integers of the dataset 'tokens'"};
}

TokenLayout find_tokens(const std::filesystem::path& path) {
  static std::mutex one_at_a_time;  // the library may have been built for one thread
  const std::lock_guard guard(one_at_a_time);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // its errors become ours
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file) refuse(path, "it cannot be opened as an HDF5 file");
  const Handle dataset(H5Dopen2(file.get(), "tokens", H5P_DEFAULT), H5Dclose);
  if (!dataset) refuse(path, "it has no dataset 'tokens'");
  return layout_of(path, dataset.get());
}

}  // namespace

std::unique_ptr<TokenSource> open_hdf5_tokens(const std::filesystem::path& file) {
  return open_mapped_tokens(file, find_tokens(file));
}

}  // namespace aliquot
