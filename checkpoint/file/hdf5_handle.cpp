#include "checkpoint/file/hdf5_handle.h"

#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// HDF5 calls this for each entry of its error stack, innermost call first. Keeps the first description, the cause.
herr_t record_reason(unsigned, const H5E_error2_t* error, void* context) {
  auto& reason = *static_cast<std::string*>(context);
  if (reason.empty() && error->desc != nullptr) reason = error->desc;
  return 0;
}

/// A 16-bit little-endian float. From the most significant bit, it has the sign, the exponent and the mantissa.
Hdf5Handle make_16_bit_float_type(size_t exponent_bits, size_t mantissa_bits, size_t bias) {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "create a type");
  hdf5_checked(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits),
               "set the fields of a type");
  hdf5_checked(H5Tset_ebias(type.get(), bias), "set the exponent bias of a type");
  hdf5_checked(H5Tset_precision(type.get(), 16), "set the precision of a type");
  hdf5_checked(H5Tset_size(type.get(), 2), "set the size of a type");
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
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, record_reason, &reason);
  if (reason.empty()) reason = "HDF5 gave no reason";
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
  throw FaultError(fmt::format("invalid dtype {} for an HDF5 dataset", static_cast<int>(dtype)));
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace aliquot
