#pragma once
// The HDF5 library's handles, owned, and its errors as sentences. Included by hdf5_*.cpp alone.

#include <hdf5.h>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// Held while HDF5 is used: the library may have been built for one thread. While it lives the library prints nothing.
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

/// Throws FaultError, "HDF5 could not WHAT: the library's reason", if `result` is negative; else returns it.
hid_t hdf5_checked(hid_t result, const std::string& what);

/// A handle of any kind, owned. The destructor closes and forgets; where the close matters, call close().
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  /// Takes what a call returned; throws as hdf5_checked does.
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

/// The type of a dataset of that dtype: little-endian, standard, and for the 16-bit floats a plain custom float type
/// that h5py reads as float16, and bfloat16 widened to float32.
Hdf5Handle hdf5_type(DType dtype);

/// "1.10.8"
std::string hdf5_version();

}  // namespace aliquot
