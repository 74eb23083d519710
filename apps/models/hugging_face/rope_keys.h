#pragma once
// Reads the rotary position embedding from a config.json: rope_theta, and rope_scaling or rope_parameters.

#include "apps/models/hugging_face/values.h"
#include "apps/models/shape.h"

namespace aliquot {

/// transformers 5 writes rope_parameters, and earlier versions write rope_theta and rope_scaling. A file may have both
/// forms if they agree. `context` is the value of max_position_embeddings. Throws UsageError for scalings that are not
/// supported.
Rope read_rope(const ConfigValues& values, int64_t context);

}  // namespace aliquot
