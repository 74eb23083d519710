#pragma once
// Reads the variations of attention from a config.json: widths of heads, biases, norms and sliding windows.

#include "apps/models/hugging_face/keys.h"
#include "apps/models/hugging_face/values.h"
#include "apps/models/shape.h"

namespace aliquot {

/// head_dim of the file or of its model type, or 0 if heads have width / heads elements.
int64_t head_dim(const ConfigValues& values, const ConfigFamily& family);

/// Sets the variations in `shape`, whose other extents are already read. Throws UsageError if transformers rejects the
/// values, or if they change the computation in an unsupported way.
void read_attention(const ConfigValues& values, const ConfigFamily& family, ModelShape& shape);

}  // namespace aliquot
