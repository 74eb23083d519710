#pragma once
// A tensor of a state that takes elements of another dtype.

#include "sharding/state.h"

namespace aliquot {

/// Stands in for `target` while it is loaded from a file that has it as `from`: elements written to tensor() are converted
/// and handed on to the target's pieces. The target outlives it; it stays where it is. converts(target.dtype, from) holds.
class ConvertingTensor final : public PieceAccess {
 public:
  ConvertingTensor(const StateTensor& target, DType from);

  const StateTensor& tensor() const { return tensor_; }

  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override;  // refused
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override;

 private:
  const StateTensor& target_;
  StateTensor tensor_;
};

}  // namespace aliquot
