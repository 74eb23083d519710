#pragma once
// Loading of tensors that are 8-bit codes in the checkpoint and floats in the state, or the reverse.

#include <cstdint>
#include <span>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/reader.h"
#include "sharding/state.h"

namespace aliquot {

/// Describes how a tensor of the state is computed from tensors of the checkpoint.
struct QuantizedConversion {
  enum class Kind : uint8_t { kDecode, kEncode, kScales };
  Kind kind = Kind::kDecode;
  const StateTensor* target = nullptr;
  const BlockCode* code = nullptr;
  const TensorEntry* values = nullptr;  // kDecode: the codes; otherwise the floats to encode
  const TensorEntry* scales = nullptr;  // kDecode only: one scale for each block
};

/// Returns whether `codes` has 8-bit codes, and `scales` has one float32 scale for each block of these codes. Returns
/// false if `scales` is null.
bool is_quantized_with(const TensorEntry& codes, const TensorEntry* scales);

/// Fills targets from a verified checkpoint. Every block that a piece touches is read and converted in full, so the
/// result does not depend on the partition. Not thread-safe.
class QuantizedConverter {
 public:
  QuantizedConverter(const CheckpointReader& reader, Ledger* ledger) : reader_(reader), ring_(ledger) {}

  void fill(const QuantizedConversion& conversion);

 private:
  /// Blocks [begin, end) of the values. Together, these blocks have `count` elements.
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
