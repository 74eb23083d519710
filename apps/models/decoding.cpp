#include "apps/models/decoding.h"

namespace aliquot {
namespace {

int64_t row_elements_of(const ModelShape& shape) { return 2 * shape.key_width(); }

}  // namespace

KeyValueCache::KeyValueCache(Device& device, const ModelShape& shape, int64_t capacity, DType type)
    : capacity_(capacity),
      row_elements_(row_elements_of(shape)),
      memory_(device.allocate(size_bytes(shape, capacity, type), Category::kActivations, "cached keys and values")),
      rows_(memory_.data(), type) {}

int64_t KeyValueCache::size_bytes(const ModelShape& shape, int64_t capacity, DType type) {
  return shape.layers * capacity * row_elements_of(shape) * element_bytes(type);
}

}  // namespace aliquot
