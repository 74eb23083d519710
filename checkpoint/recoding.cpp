#include "checkpoint/recoding.h"

#include <algorithm>

#include "checkpoint/file/convert.h"
#include "kernels/formats/block_code.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

// As many elements as fill a chunk when they are doubles.
constexpr int64_t kBlocksAtOnce = StagingRing::kChunkBytes / 8 / kBlockElements;

// What each chunk of the ring is for.
constexpr int64_t kRaw = 0, kFloats = 1, kScales = 2, kResult = 3;

int64_t block_count(int64_t element_count) { return (element_count + kBlockElements - 1) / kBlockElements; }

/// Calls `each` with every block's own part of `count` elements, and the block's number.
template <typename Each>
void for_each_block(int64_t count, const Each& each) {
  for (int64_t at = 0, block = 0; at < count; at += kBlockElements, ++block)
    each(static_cast<size_t>(at), static_cast<size_t>(std::min(kBlockElements, count - at)),
         static_cast<size_t>(block));
}

int64_t count_of(const TensorEntry& tensor) { return tensor.size_bytes / element_bytes(tensor.dtype); }

}  // namespace

bool is_coded_as(const TensorEntry& codes, const TensorEntry* scales) {
  return codes.dtype == DType::kUInt8 && scales != nullptr && scales->dtype == DType::kFloat32 &&
         scales->shape == std::vector<int64_t>{block_count(count_of(codes))};
}

template <typename T>
std::span<T> Recoder::room(int64_t chunk, int64_t count) const {
  return {reinterpret_cast<T*>(ring_.chunk(chunk).data()), static_cast<size_t>(count)};
}

void Recoder::fill(const Recoding& what) {
  const int64_t per_value = what.kind == Recoding::Kind::kScales ? kBlockElements : 1;
  for (const StatePiece& piece : what.target->pieces) {
    int64_t first = piece.offset;
    while (first < piece.offset + piece.count) {
      const int64_t block_end = (first * per_value / kBlockElements + kBlocksAtOnce) * kBlockElements;
      const int64_t last = std::min(piece.offset + piece.count, block_end / per_value);
      fill_part(what, piece, first, last);
      first = last;
    }
  }
}

/// Values [first, last) of the target: elements, or scales.
void Recoder::fill_part(const Recoding& what, const StatePiece& piece, int64_t first, int64_t last) {
  const bool makes_scales = what.kind == Recoding::Kind::kScales;
  Blocks blocks{first, last, 0};
  if (!makes_scales) blocks = {first / kBlockElements, block_count(last), 0};
  blocks.count = std::min(blocks.end * kBlockElements, count_of(*what.values)) - blocks.begin * kBlockElements;
  const DType to = what.target->dtype;
  const size_t skipped = makes_scales ? 0 : static_cast<size_t>(first - blocks.begin * kBlockElements);
  const auto result = room<std::byte>(kResult, (last - first) * element_bytes(to));
  const auto take = [&](DType from, auto values) {
    convert(to, result.data(), from, reinterpret_cast<const std::byte*>(values.data() + skipped), last - first);
  };
  switch (what.kind) {
    case Recoding::Kind::kDecode: take(DType::kFloat32, decode(what, blocks)); break;
    case Recoding::Kind::kEncode: take(DType::kUInt8, encode(*what.code, read_floats(*what.values, blocks))); break;
    case Recoding::Kind::kScales: take(DType::kFloat32, scale(*what.code, read_floats(*what.values, blocks))); break;
  }
  write_piece(*what.target, piece, first - piece.offset, result);
}

std::span<const float> Recoder::read_floats(const TensorEntry& values, const Blocks& blocks) {
  const int64_t width = element_bytes(values.dtype);
  const auto raw = room<std::byte>(kRaw, blocks.count * width);
  reader_.read(raw, values.file_offset + blocks.begin * kBlockElements * width);
  const auto floats = room<float>(kFloats, blocks.count);
  convert(DType::kFloat32, reinterpret_cast<std::byte*>(floats.data()), values.dtype, raw.data(), blocks.count);
  return floats;
}

std::span<const float> Recoder::decode(const Recoding& what, const Blocks& blocks) {
  const auto codes = room<uint8_t>(kRaw, blocks.count);
  reader_.read(std::as_writable_bytes(codes), what.values->file_offset + blocks.begin * kBlockElements);
  const auto scales = room<float>(kScales, blocks.end - blocks.begin);
  reader_.read(std::as_writable_bytes(scales),
               what.scales->file_offset + blocks.begin * static_cast<int64_t>(sizeof(float)));
  const auto floats = room<float>(kFloats, blocks.count);
  for_each_block(blocks.count, [&](size_t at, size_t count, size_t block) {
    what.code->decode(codes.subspan(at, count), scales[block], floats.data() + at);
  });
  return floats;
}

std::span<const uint8_t> Recoder::encode(const BlockCode& code, std::span<const float> values) {
  const auto codes = room<uint8_t>(kRaw, static_cast<int64_t>(values.size()));
  for_each_block(static_cast<int64_t>(values.size()), [&](size_t at, size_t count, size_t) {
    const auto block = values.subspan(at, count);
    code.encode(block, code.scale_of(block), codes.data() + at);
  });
  return codes;
}

std::span<const float> Recoder::scale(const BlockCode& code, std::span<const float> values) {
  const auto scales = room<float>(kScales, block_count(static_cast<int64_t>(values.size())));
  for_each_block(static_cast<int64_t>(values.size()), [&](size_t at, size_t count, size_t block) {
    scales[block] = code.scale_of(values.subspan(at, count));
  });
  return scales;
}

}  // namespace aliquot
