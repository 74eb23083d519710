// The CUDA kernels encode and decode. Each warp processes one block, with eight elements per lane.
#include <stdexcept>
#include <string>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/encoding.h"
#include "kernels/elementwise/kernels_cuda.h"
#include "kernels/formats/element.h"

namespace aliquot::cuda {
namespace {

constexpr int kLaneElements = static_cast<int>(kBlockElements) / kLanesPerWarp;

/// One block of an encoded part: the address of a lane's codes, and of the block's scale.
struct EncodedBlock {
  __device__ EncodedBlock(std::byte* parts, int64_t part_bytes, int64_t count, int64_t element) {
    const int64_t in_part = element % count;
    std::byte* part = parts + element / count * part_bytes;
    codes = reinterpret_cast<int8_t*>(part + in_part) + kLaneElements * warp_lane();
    scale = reinterpret_cast<float*>(part + scales_offset(count)) + in_part / kBlockElements;
  }
  int8_t* codes;
  float* scale;
};

struct LaneValues {
  float lane[kLaneElements];
};

__device__ LaneValues decoded(const EncodedBlock& from) {
  LaneValues values;
  const auto codes = load_pack<kLaneElements>(from.codes);
  const float scale = *from.scale;
  for (int k = 0; k < kLaneElements; ++k) values.lane[k] = static_cast<float>(codes.lane[k]) * scale;
  return values;
}

__device__ uint32_t warp_max_magnitude_bits(const LaneValues& values) {
  uint32_t largest = 0;
  for (const float x : values.lane) largest = max(largest, float_bits(x) & 0x7fffffffu);
  return __reduce_max_sync(0xffffffffu, largest);
}

/// Encodes a block and replaces `values` by the rounding errors, or by zeros if the block has a non-finite element.
__device__ void encode_block(LaneValues& values, const EncodedBlock& to) {
  const BlockScale block = BlockScale::of(warp_max_magnitude_bits(values));
  if (warp_lane() == 0) *to.scale = block.scale;
  Pack<int8_t, kLaneElements> codes;
  for (int k = 0; k < kLaneElements; ++k) {
    const float code = block.finite() ? block.code(values.lane[k]) : 0.0f;
    codes.lane[k] = static_cast<int8_t>(static_cast<int32_t>(code));
    values.lane[k] = block.finite() ? values.lane[k] - code * block.scale : 0.0f;
  }
  store_pack(to.codes, codes);
}

template <class From>
__global__ void encode_blocks(const Encode args, int64_t part_bytes) {
  const int64_t block_count = args.part_count * args.count / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t element = block * kBlockElements;
    const auto* from = static_cast<const typename From::Storage*>(args.from) + element + kLaneElements * warp_lane();
    LaneValues values;
    for (int k = 0; k < kLaneElements; ++k) values.lane[k] = From::load(from[k]);
    if (args.carried != nullptr) {
      const LaneValues carried = decoded({args.carried, part_bytes, args.count, element});
      for (int k = 0; k < kLaneElements; ++k) values.lane[k] += carried.lane[k];
    }
    encode_block(values, {args.to, part_bytes, args.count, element});
    if (args.carried == nullptr) continue;
    __syncwarp();  // all threads of the warp have read the residual, which is overwritten next
    encode_block(values, {args.carried, part_bytes, args.count, element});
  }
}

template <class To>
__global__ void decode_blocks(const Decode args, int64_t part_bytes) {
  const int64_t block_count = args.part_count * args.count / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t element = block * kBlockElements;
    const LaneValues values = decoded({const_cast<std::byte*>(args.from), part_bytes, args.count, element});
    auto* to = static_cast<typename To::Storage*>(args.to) + element + kLaneElements * warp_lane();
    for (int k = 0; k < kLaneElements; ++k) to[k] = To::store(values.lane[k]);
  }
}

[[noreturn]] void throw_unsupported_dtype(DType dtype) {
  throw std::logic_error("encode and decode do not support dtype " + std::string(name(dtype)));
}

}  // namespace

void encode(Stream& stream, const Encode& args) {
  const int64_t count = args.part_count * args.count;
  if (count == 0) return;
  const auto kernel = [&] {
    switch (args.from_dtype) {
      case DType::kFloat32: return encode_blocks<Fp32Element>;
      case DType::kBFloat16: return encode_blocks<Bf16Element>;
      case DType::kFloat16: return encode_blocks<Fp16Element>;
      default: throw_unsupported_dtype(args.from_dtype);
    }
  }();
  start_kernel(stream, "encode", launch_grid(count / kLaneElements), kernel, args, encoded_bytes(args.count));
}

void decode(Stream& stream, const Decode& args) {
  const int64_t count = args.part_count * args.count;
  if (count == 0) return;
  const auto kernel = [&] {
    switch (args.to_dtype) {
      case DType::kFloat32: return decode_blocks<Fp32Element>;
      case DType::kBFloat16: return decode_blocks<Bf16Element>;
      case DType::kFloat16: return decode_blocks<Fp16Element>;
      default: throw_unsupported_dtype(args.to_dtype);
    }
  }();
  start_kernel(stream, "decode", launch_grid(count / kLaneElements), kernel, args, encoded_bytes(args.count));
}

}  // namespace aliquot::cuda
