#pragma once
// Decoding: a model computes the logits of the next token of one sequence, a few positions at a time.

#include <cstdint>
#include <span>

#include "apps/models/shape.h"
#include "apps/models/tensor_part.h"
#include "kernels/device/device.h"
#include "kernels/formats/values.h"

namespace aliquot {

/// The keys and values of the positions of one sequence that a model has computed so far. A rank of a tensor group has
/// those of its heads. Owns device memory, which must not outlive the device. Used by the rank's own thread.
class KeyValueCache {
 public:
  /// Allocates memory for `capacity` positions of all layers. Throws UnavailableError if there is not enough memory.
  KeyValueCache(Device& device, const ModelShape& shape, int64_t capacity, DType type, const TensorGroup& tensor = {});

  /// The size of the memory that the constructor allocates. It is the same on all ranks of a tensor group.
  static int64_t size_bytes(const ModelShape& shape, int64_t capacity, DType type, const TensorGroup& tensor = {});

  int64_t capacity() const { return capacity_; }
  /// The number of positions that all layers have. The caller sets it after each pass.
  int64_t length() const { return length_; }
  void set_length(int64_t positions) { length_ = positions; }
  /// The rows of a layer: one for each position, which has the keys of the rank's heads and then their values.
  Values rows(int64_t layer) const { return rows_.from(layer * capacity_ * row_elements_); }
  int64_t row_elements() const { return row_elements_; }

 private:
  int64_t capacity_, row_elements_, length_ = 0;
  Buffer memory_;
  Values rows_;
};

/// A forward pass over the next positions of a sequence. With a cache, `tokens` are at the positions from
/// cache->length() on. The pass reads the keys and values of earlier positions from the cache and writes those of
/// `tokens` to it. Without a cache, `tokens` are the whole sequence.
struct DecodingPass {
  std::span<const int32_t> tokens;
  KeyValueCache* cache = nullptr;

  int64_t first_position() const { return cache == nullptr ? 0 : cache->length(); }
  /// The length of the sequence after the pass.
  int64_t end_position() const { return first_position() + static_cast<int64_t>(tokens.size()); }
};

}  // namespace aliquot
