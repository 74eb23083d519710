#pragma once
// RAII handles of HDF5, and conversion of HDF5 errors to exceptions. Only hdf5_*.cpp include this file.

#include <hdf5.h>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// A lock that must be held during every use of HDF5, because the library may be built without thread safety. Also
/// suppresses the error messages that HDF5 prints.
class Hdf5Lock {
 public:
  Hdf5Lock();
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  std::lock_guard<std::mutex> guard_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

/// Returns `result`. If it is negative, throws FaultError "HDF5 could not WHAT: REASON" with the reason that HDF5
/// gives.
hid_t hdf5_checked(hid_t result, const std::string& what);

/// Owns an HDF5 handle of any kind. The destructor ignores errors; close() throws them.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  /// Takes ownership of `id`. Throws as hdf5_checked() does if `id` is negative.
  Hdf5Handle(hid_t id, Close closer, const std::string& what) : id_(hdf5_checked(id, what)), close_(closer) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t get() const { return id_; }
  void close(const std::string& what) { hdf5_checked(close_(std::exchange(id_, -1)), what); }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// Returns the HDF5 type of a dataset of `dtype`. All types are little-endian. The 16-bit floats have custom float
/// types: h5py reads float16 as float16, and bfloat16 as float32.
Hdf5Handle hdf5_type(DType dtype);

/// Returns the version of the HDF5 library in use, such as "1.10.8". The caller holds an Hdf5Lock.
std::string hdf5_version();

}  // namespace aliquot
