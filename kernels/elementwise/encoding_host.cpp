#include "kernels/elementwise/encoding_host.h"

#include <algorithm>

#include "kernels/elementwise/encoding.h"
#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

/// One block of an encoded part: the addresses of its codes and of its scale.
template <typename Byte>
struct EncodedBlock {
  EncodedBlock(Byte* parts, int64_t count, int64_t element) {
    const int64_t in_part = element % count;
    Byte* part = parts + element / count * encoded_bytes(count);
    codes = part + in_part;
    scale = part + scales_offset(count) + in_part / kBlockElements * static_cast<int64_t>(sizeof(float));
  }
  Byte* codes;
  Byte* scale;
};

using BlockValues = float[kBlockElements];

const HostLoops& loops() {
  static const HostLoops& best = host_loops(best_isa());
  return best;
}

void load(const Encode& args, int64_t element, float* values) {
  const auto* from = static_cast<const std::byte*>(args.from) + element * element_bytes(args.from_dtype);
  if (args.from_dtype == DType::kFloat32) {
    loops().copy(values, from, kBlockElements * static_cast<int64_t>(sizeof(float)));
  } else {
    loops().cast(values, DType::kFloat32, from, args.from_dtype, kBlockElements);
  }
}

void decode_block(const EncodedBlock<const std::byte>& from, float* values) {
  const float scale = *reinterpret_cast<const float*>(from.scale);
  const auto* codes = reinterpret_cast<const int8_t*>(from.codes);
  for (int64_t i = 0; i < kBlockElements; ++i) values[i] = static_cast<float>(codes[i]) * scale;
}

/// Encodes a block and replaces `values` by the rounding errors, or by zeros if the block has a non-finite element.
void encode_block(float* values, const EncodedBlock<std::byte>& to) {
  int32_t largest = 0;
  for (int64_t i = 0; i < kBlockElements; ++i) {
    const auto magnitude = static_cast<int32_t>(float_bits(values[i]) & 0x7fffffffu);
    largest = largest < magnitude ? magnitude : largest;
  }
  const BlockScale block = BlockScale::of(static_cast<uint32_t>(largest));
  *reinterpret_cast<float*>(to.scale) = block.scale;
  auto* codes = reinterpret_cast<int8_t*>(to.codes);
  if (!block.finite()) {
    std::fill_n(codes, kBlockElements, int8_t{0});
    std::fill_n(values, kBlockElements, 0.0f);
    return;
  }
  for (int64_t i = 0; i < kBlockElements; ++i) {
    const float code = block.code(values[i]);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code));
    values[i] -= code * block.scale;
  }
}

}  // namespace

void encode_blocks(const Encode& args, int64_t begin, int64_t end) {
  alignas(64) BlockValues values, carried;
  for (int64_t element = begin; element < end; element += kBlockElements) {
    load(args, element, values);
    if (args.carried != nullptr) {
      decode_block({args.carried, args.count, element}, carried);
      for (int64_t i = 0; i < kBlockElements; ++i) values[i] += carried[i];
    }
    encode_block(values, {args.to, args.count, element});
    if (args.carried != nullptr) encode_block(values, {args.carried, args.count, element});
  }
}

void decode_blocks(const Decode& args, int64_t begin, int64_t end) {
  alignas(64) BlockValues values;
  for (int64_t element = begin; element < end; element += kBlockElements) {
    auto* to = static_cast<std::byte*>(args.to) + element * element_bytes(args.to_dtype);
    const EncodedBlock<const std::byte> from(args.from, args.count, element);
    if (args.to_dtype == DType::kFloat32) {
      decode_block(from, reinterpret_cast<float*>(to));
    } else {
      decode_block(from, values);
      loops().cast(to, args.to_dtype, values, DType::kFloat32, kBlockElements);
    }
  }
}

}  // namespace aliquot
