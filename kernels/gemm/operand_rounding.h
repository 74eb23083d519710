#pragma once
// How GPUs round the operands of matrix products.

#include <cstdint>

namespace aliquot {

/// kTf32 rounds fp32 operands to 10 bits after the point, for tensor cores. kFp8 rounds the bf16 operands of the linear
/// layers in blocks to fp8. Sums are fp32 in all cases.
enum class OperandRounding : uint8_t { kNone, kTf32, kFp8 };

}  // namespace aliquot
