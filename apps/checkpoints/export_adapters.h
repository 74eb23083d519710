#pragma once
// Export of a checkpoint that contains only the adapters of LoRA.

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_adapters.h"
#include "checkpoint/reader.h"

namespace aliquot {

/// Writes model.safetensors and config.json of the merged weights (--lora merged), or adapter_model.safetensors and
/// adapter_config.json (--lora adapter), to --out. `reader` must be verified. Throws UsageError if the options are
/// invalid or the base is absent or another one, and what export_tensors() throws.
int export_adapters(const CheckpointOptions& options, const CheckpointReader& reader, const SavedAdapters& adapters);

}  // namespace aliquot
