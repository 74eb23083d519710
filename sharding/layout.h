#pragma once
// The layout of flat buffers, and the assignment of their elements to ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// One tensor of a flat buffer. It starts at a block boundary, so no block contains elements of two tensors.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  bool trainable = true;

  /// Returns the product of the extents; 1 for a scalar. Throws UsageError for a negative extent or a product beyond
  /// 2^62.
  int64_t element_count() const;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// `count` elements of tensor number `tensor`. The first one is element `tensor_offset` of the tensor and element
/// `shard_offset` of the shard.
struct Piece {
  int32_t tensor;
  int64_t tensor_offset, shard_offset, count;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Padding: elements [begin, end) of a flat buffer, which belong to no tensor. `after` is the preceding tensor, or -1.
struct Gap {
  int32_t after;
  int64_t begin, end;

  friend bool operator==(const Gap&, const Gap&) = default;
};

/// The position of one element of a tensor.
struct Place {
  int rank;
  int64_t shard_offset;

  friend bool operator==(const Place&, const Place&) = default;
};

/// Assigns the tensors of a unit to positions in a flat buffer, and the flat buffer's elements to ranks. Tensors are
/// stored in the given order, each starting at a block boundary. Padding at the end makes all shards equally long. Rank
/// r owns elements [r * shard_count(), (r + 1) * shard_count()). Immutable, and the same on every rank. All other code
/// uses pieces() or place() to find owners, instead of dividing by the number of ranks.
class FlatLayout {
 public:
  /// Each shard consists of `parts_per_shard` equal parts, each a multiple of the block size. `red_zone_blocks` empty
  /// blocks precede each tensor and follow the last one. Throws UsageError if tensors differ in dtype or trainability,
  /// if two have the same name, or if there are more than 2^62 elements.
  FlatLayout(std::vector<TensorSpec> tensors, int rank_count, int parts_per_shard = 1, int64_t red_zone_blocks = 0);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  int rank_count() const { return rank_count_; }

  int64_t shard_count() const { return shard_count_; }  // elements per shard, a multiple of the block size
  int64_t flat_count() const { return shard_count_ * rank_count_; }
  int64_t element_count() const { return element_count_; }  // excludes padding
  /// The index of the tensor's first element in the flat buffer.
  int64_t tensor_offset(int32_t tensor) const { return tensor_offsets_[tensor]; }

  /// Returns the pieces that `rank` owns, in order of shard_offset. The pieces of all ranks contain every element
  /// exactly once.
  std::vector<Piece> pieces(int rank) const;
  /// Returns all padding, including red zones, in order.
  std::vector<Gap> gaps() const;
  /// Returns the rank that owns element `element` of `tensor`, and the element's position in the rank's shard.
  Place place(int32_t tensor, int64_t element) const;

  /// Returns whether both layouts have the same tensors at the same offsets, and assign each element to the same rank.
  friend bool operator==(const FlatLayout&, const FlatLayout&) = default;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<int64_t> tensor_offsets_;
  int rank_count_;
  int64_t element_count_ = 0;
  int64_t shard_count_ = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
