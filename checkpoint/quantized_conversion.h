#pragma once
// Tensors that a checkpoint has as eight-bit codes and a state as floats, or the other way round.

#include <cstdint>
#include <span>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/reader.h"
#include "sharding/state.h"

namespace aliquot {

/// How a tensor of the state is made from tensors of the checkpoint.
struct QuantizedConversion {
  enum class Kind : uint8_t { kDecode, kEncode, kScales };
  Kind kind = Kind::kDecode;
  const StateTensor* target = nullptr;
  const BlockCode* code = nullptr;
  const TensorEntry* values = nullptr;  // the codes, or the floats of which codes or scales are made
  const TensorEntry* scales = nullptr;  // kDecode: one a block
};

/// What may have codes in its place: floats of which each becomes or was one.
bool is_quantized_with(const TensorEntry& codes, const TensorEntry* scales);

/// Fills targets from a checkpoint that has been verified. Each piece is made from the blocks that it touches, whole, so that
/// no cut changes a bit. One thread.
class QuantizedConverter {
 public:
  QuantizedConverter(const CheckpointReader& reader, Ledger* ledger) : reader_(reader), ring_(ledger) {}

  void fill(const QuantizedConversion& conversion);

 private:
  /// Blocks [begin, end) of the values, and how many elements lie in them.
  struct Blocks {
    int64_t begin, end, count;
  };
  void fill_part(const QuantizedConversion& conversion, const StatePiece& piece, int64_t first, int64_t last);
  std::span<const float> read_floats(const TensorEntry& values, const Blocks& blocks);
  std::span<const float> decode(const QuantizedConversion& conversion, const Blocks& blocks);
  std::span<const uint8_t> encode(const BlockCode& code, std::span<const float> values);
  std::span<const float> scale(const BlockCode& code, std::span<const float> values);
  template <typename T>
  std::span<T> scratch(int64_t chunk, int64_t count) const;

  const CheckpointReader& reader_;
  StagingRing ring_;
};

}  // namespace aliquot
