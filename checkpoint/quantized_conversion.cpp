#include "checkpoint/quantized_conversion.h"

#include <algorithm>

#include "checkpoint/file/convert.h"
#include "kernels/formats/block_code.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

// The number of blocks that are converted together: as many as fill one chunk if their elements are float64.
constexpr int64_t kBlocksAtOnce = StagingRing::kChunkBytes / 8 / kBlockElements;

// The chunk of the ring that holds each kind of data.
constexpr int64_t kRawChunk = 0, kFloatsChunk = 1, kScalesChunk = 2, kResultChunk = 3;

int64_t block_count(int64_t element_count) { return (element_count + kBlockElements - 1) / kBlockElements; }

/// Divides `count` elements into blocks. Calls `each` for every block, with its first element, its number of elements
/// and its index.
template <typename Each>
void for_each_block(int64_t count, const Each& each) {
  for (int64_t at = 0, block = 0; at < count; at += kBlockElements, ++block)
    each(static_cast<size_t>(at), static_cast<size_t>(std::min(kBlockElements, count - at)),
         static_cast<size_t>(block));
}

int64_t count_of(const TensorEntry& tensor) { return tensor.size_bytes / element_bytes(tensor.dtype); }

}  // namespace

bool is_quantized_with(const TensorEntry& codes, const TensorEntry* scales) {
  return codes.dtype == DType::kUInt8 && scales != nullptr && scales->dtype == DType::kFloat32 &&
         scales->shape == std::vector<int64_t>{block_count(count_of(codes))};
}

template <typename T>
std::span<T> QuantizedConverter::scratch(int64_t chunk, int64_t count) const {
  return {reinterpret_cast<T*>(ring_.chunk(chunk).data()), static_cast<size_t>(count)};
}

void QuantizedConverter::fill(const QuantizedConversion& conversion) {
  const int64_t per_value = conversion.kind == QuantizedConversion::Kind::kScales ? kBlockElements : 1;
  const int64_t width = element_bytes(conversion.target->dtype), most = int64_t{1} << 58;
  for (const StatePiece& piece : conversion.target->pieces) {
    for_each_range(piece, width, 0, piece.count, most, [&](int64_t first, int64_t end) {
      while (first < end) {
        const int64_t block_end = (first * per_value / kBlockElements + kBlocksAtOnce) * kBlockElements;
        const int64_t last = std::min(end, block_end / per_value);
        fill_part(conversion, piece, first, last);
        first = last;
      }
    });
  }
}

/// Computes values [first, last) of the target, which are elements or scales, and fills those of the piece.
void QuantizedConverter::fill_part(const QuantizedConversion& conversion, const StatePiece& piece, int64_t first,
                                   int64_t last) {
  const bool makes_scales = conversion.kind == QuantizedConversion::Kind::kScales;
  Blocks blocks{first, last, 0};
  if (!makes_scales) blocks = {first / kBlockElements, block_count(last), 0};
  blocks.count = std::min(blocks.end * kBlockElements, count_of(*conversion.values)) - blocks.begin * kBlockElements;
  const DType to = conversion.target->dtype;
  const size_t skipped = makes_scales ? 0 : static_cast<size_t>(first - blocks.begin * kBlockElements);
  const auto result = scratch<std::byte>(kResultChunk, (last - first) * element_bytes(to));
  const auto write_values = [&](DType from, auto values) {
    convert(to, result.data(), from, reinterpret_cast<const std::byte*>(values.data() + skipped), last - first);
  };
  switch (conversion.kind) {
    case QuantizedConversion::Kind::kDecode: write_values(DType::kFloat32, decode(conversion, blocks)); break;
    case QuantizedConversion::Kind::kEncode:
      write_values(DType::kUInt8, encode(*conversion.code, read_floats(*conversion.values, blocks)));
      break;
    case QuantizedConversion::Kind::kScales:
      write_values(DType::kFloat32, scale(*conversion.code, read_floats(*conversion.values, blocks)));
      break;
  }
  write_overlaps(*conversion.target, piece, first, result);
}

std::span<const float> QuantizedConverter::read_floats(const TensorEntry& values, const Blocks& blocks) {
  const int64_t width = element_bytes(values.dtype);
  const auto raw = scratch<std::byte>(kRawChunk, blocks.count * width);
  reader_.read(raw, values.file_offset + blocks.begin * kBlockElements * width);
  const auto floats = scratch<float>(kFloatsChunk, blocks.count);
  convert(DType::kFloat32, reinterpret_cast<std::byte*>(floats.data()), values.dtype, raw.data(), blocks.count);
  return floats;
}

std::span<const float> QuantizedConverter::decode(const QuantizedConversion& conversion, const Blocks& blocks) {
  const auto codes = scratch<uint8_t>(kRawChunk, blocks.count);
  reader_.read(std::as_writable_bytes(codes), conversion.values->file_offset + blocks.begin * kBlockElements);
  const auto scales = scratch<float>(kScalesChunk, blocks.end - blocks.begin);
  reader_.read(std::as_writable_bytes(scales),
               conversion.scales->file_offset + blocks.begin * static_cast<int64_t>(sizeof(float)));
  const auto floats = scratch<float>(kFloatsChunk, blocks.count);
  for_each_block(blocks.count, [&](size_t at, size_t count, size_t block) {
    conversion.code->decode(codes.subspan(at, count), scales[block], floats.data() + at);
  });
  return floats;
}

std::span<const uint8_t> QuantizedConverter::encode(const BlockCode& code, std::span<const float> values) {
  const auto codes = scratch<uint8_t>(kRawChunk, static_cast<int64_t>(values.size()));
  for_each_block(static_cast<int64_t>(values.size()), [&](size_t at, size_t count, size_t) {
    const auto block = values.subspan(at, count);
    code.encode(block, code.scale_of(block), codes.data() + at);
  });
  return codes;
}

std::span<const float> QuantizedConverter::scale(const BlockCode& code, std::span<const float> values) {
  const auto scales = scratch<float>(kScalesChunk, block_count(static_cast<int64_t>(values.size())));
  for_each_block(static_cast<int64_t>(values.size()), [&](size_t at, size_t count, size_t block) {
    scales[block] = code.scale_of(values.subspan(at, count));
  });
  return scales;
}

}  // namespace aliquot
