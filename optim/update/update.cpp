#include "optim/update/update.h"

#include <fmt/format.h>
#include <stdexcept>

#include "optim/custom_loops.h"
#include "optim/update/update_tables.h"

namespace aliquot {
namespace {

void require(bool supported, const char* operand, DType dtype) {
  if (!supported) throw std::logic_error(fmt::format("update: {} cannot have dtype {}", operand, name(dtype)));
}

bool is_fp32_or_bf16(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

}  // namespace

void check_dtypes(const UpdateArgs& args, const Rule& rule) {
  require(is_fp32_or_bf16(args.gradient_dtype), "gradients", args.gradient_dtype);
  require(is_fp32_or_bf16(args.moments) || args.moments == DType::kUInt8, "moments", args.moments);
  const DType copy = args.master.copy_dtype;
  require(copy == DType::kBFloat16 || copy == DType::kFloat16, "the working copy", copy);
  if (args.moments == DType::kUInt8 && !std::holds_alternative<AdamWRule>(rule)) {
    throw std::logic_error("update: 8-bit moments are supported only with AdamW");
  }
  const auto* custom = std::get_if<CustomRule>(&rule);
  if (custom != nullptr && args.moments == DType::kBFloat16 && custom->loops->state_count > kMaxRoundedStates) {
    throw std::logic_error(
        "update: the custom rule has more than kMaxRoundedStates states, which bfloat16 moments do not support");
  }
}

int64_t state_offset_bytes(DType moments, int state, int64_t offset) {
  const bool is_scale = moments == DType::kUInt8 && state % 2 == 1;
  return is_scale ? offset / kBlockElements * element_bytes(DType::kFloat32) : offset * element_bytes(moments);
}

const UpdateKernels& update_kernels(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? cuda_update_kernels() : host_update_kernels();
}

}  // namespace aliquot
