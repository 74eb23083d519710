#pragma once
// Who owns which elements.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// One tensor of a flat buffer. It starts on a block, so no block holds two tensors.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  bool trainable = true;

  /// The product of the shape; 1 for a scalar. Throws UsageError for a negative extent or a product beyond 2^62.
  int64_t element_count() const;
};

/// `count` elements of tensor `tensor`, from its element `tensor_offset`, lying at `shard_offset` of a shard.
struct Piece {
  int32_t tensor;
  int64_t tensor_offset, shard_offset, count;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Elements [begin, end) of a flat buffer, which hold no tensor. `after`: the tensor before them, or -1.
struct Gap {
  int32_t after;
  int64_t begin, end;

  friend bool operator==(const Gap&, const Gap&) = default;
};

/// Where one element of a tensor lies.
struct Place {
  int rank;
  int64_t shard_offset;

  friend bool operator==(const Place&, const Place&) = default;
};

/// How tensors lie in one flat buffer and which part each rank owns: tensor after tensor in the order given, each from a
/// block's edge, padded with empty blocks until the shards are equal; rank r owns [r, r + 1) * shard_count(). The same on
/// every rank; never changes. Everything that shards, loads, quantises, decays or draws random numbers asks pieces();
/// nothing else in the house divides by the number of ranks.
class FlatLayout {
 public:
  /// Throws UsageError when tensors differ in dtype or trainability (those want a flat buffer each) or share a name, and for
  /// more than 2^62 elements in all. Every shard is `parts_per_shard` equal parts of whole blocks. `red_zone_blocks` blocks
  /// before each tensor and after the last are left empty.
  FlatLayout(std::vector<TensorSpec> tensors, int rank_count, int parts_per_shard = 1, int64_t red_zone_blocks = 0);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  int rank_count() const { return rank_count_; }

  int64_t shard_count() const { return shard_count_; }  // elements, whole blocks, equal on all ranks
  int64_t flat_count() const { return shard_count_ * rank_count_; }
  int64_t element_count() const { return element_count_; }                         // of the tensors, without padding
  int64_t tensor_offset(int32_t tensor) const { return tensor_offsets_[tensor]; }  // in the flat buffer

  /// What `rank` owns, in order of shard_offset. Over all ranks the pieces tile every tensor exactly once.
  std::vector<Piece> pieces(int rank) const;
  /// What pads tensors and shards, red zones among it, in order. Together with the tensors the gaps tile the flat buffer.
  std::vector<Gap> gaps() const;
  /// Who owns element `element` of `tensor`, and where in its shard.
  Place place(int32_t tensor, int64_t element) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<int64_t> tensor_offsets_;
  int rank_count_;
  int64_t element_count_ = 0;
  int64_t shard_count_ = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
