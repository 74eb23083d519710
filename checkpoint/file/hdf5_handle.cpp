#include "checkpoint/file/hdf5_handle.h"

#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Keeps the innermost reason, which is the one that says something.
herr_t record_reason(unsigned, const H5E_error2_t* error, void* reason) {
  if (error->desc != nullptr) *static_cast<std::string*>(reason) = error->desc;
  return 0;
}

/// A little-endian float of 16 bits: the sign, `exponent_bits` and `mantissa_bits`, from the top.
Hdf5Handle make_16_bit_float_type(size_t exponent_bits, size_t mantissa_bits, size_t bias) {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "make a type");
  hdf5_checked(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits), "set a type's fields");
  hdf5_checked(H5Tset_ebias(type.get(), bias), "set a type's bias");
  hdf5_checked(H5Tset_precision(type.get(), 16), "set a type's precision");
  hdf5_checked(H5Tset_size(type.get(), 2), "set a type's size");
  return type;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : guard_(library_mutex()) {
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Lock::~Hdf5Lock() { H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_); }

hid_t hdf5_checked(hid_t result, const std::string& what) {
  if (result >= 0) return result;
  std::string reason = "no reason was given";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, record_reason, &reason);
  throw FaultError(fmt::format("HDF5 could not {}: {}", what, reason));
}

Hdf5Handle hdf5_type(DType dtype) {
  const auto standard = [](hid_t type) { return Hdf5Handle(H5Tcopy(type), H5Tclose, "copy a type"); };
  switch (dtype) {
    case DType::kFloat64: return standard(H5T_IEEE_F64LE);
    case DType::kFloat32: return standard(H5T_IEEE_F32LE);
    case DType::kBFloat16: return make_16_bit_float_type(8, 7, 127);
    case DType::kFloat16: return make_16_bit_float_type(5, 10, 15);
    case DType::kInt16: return standard(H5T_STD_I16LE);
    case DType::kUInt8: return standard(H5T_STD_U8LE);
  }
  throw FaultError("a dtype that checkpoints do not know");
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace aliquot
