#include "apps/models/decoding.h"

namespace aliquot {
KeyValueCache::KeyValueCache(Device& device, const ModelShape& shape, int64_t capacity, DType type,
                             const TensorGroup& tensor)
    : capacity_(capacity),
      row_elements_(2 * tensor_part(shape, tensor, 1).kv_heads * shape.head_width()),
      memory_(
          device.allocate(size_bytes(shape, capacity, type, tensor), Category::kActivations, "cached keys and values")),
      rows_(memory_.data(), type) {}

int64_t KeyValueCache::size_bytes(const ModelShape& shape, int64_t capacity, DType type, const TensorGroup& tensor) {
  const int64_t heads = largest_tensor_part(shape, tensor, 1).kv_heads;
  return shape.layers * capacity * 2 * heads * shape.head_width() * element_bytes(type);
}

}  // namespace aliquot
