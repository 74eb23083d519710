#include "optim/update.h"

#include <fmt/format.h>
#include <stdexcept>

#include "optim/update_tables.h"

namespace aliquot {
namespace {

void require(bool known, const char* what, DType dtype) {
  if (!known) throw std::logic_error(fmt::format("update: {} cannot be {}", what, name(dtype)));
}

bool is_fp32_or_bf16(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

}  // namespace

void check_dtypes(const UpdateArgs& args) {
  require(is_fp32_or_bf16(args.gradient_dtype), "gradients", args.gradient_dtype);
  require(is_fp32_or_bf16(args.moments), "moments", args.moments);
  const DType copy = args.master.copy_dtype;
  require(copy == DType::kBFloat16 || copy == DType::kFloat16, "a working copy", copy);
}

const UpdateKernels& update_kernels(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? cuda_update_kernels() : host_update_kernels();
}

}  // namespace aliquot
