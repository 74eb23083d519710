#pragma once
// The element types of buffers, and the block size.

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace aliquot {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64, kInt16, kUInt8 };

/// The number of elements in a block, which is never split. Boundaries of shards, partial sums of norms, quantization
/// scales, weight decay and random keys are boundaries of blocks. So no result depends on how tensors are grouped or
/// sharded.
inline constexpr int64_t kBlockElements = 256;

/// Returns the size of one element in bytes.
constexpr int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 8;
    case DType::kFloat32: return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16: return 2;
    case DType::kUInt8: return 1;
  }
  return 0;
}

/// Returns the name used in flags, logs, checkpoints and digests: "float32", "bfloat16", ...
constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return "float64";
    case DType::kFloat32: return "float32";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat16: return "float16";
    case DType::kInt16: return "int16";
    case DType::kUInt8: return "uint8";
  }
  return "unknown";
}

}  // namespace aliquot
#pragma GCC visibility pop
