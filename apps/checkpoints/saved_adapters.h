#pragma once
// What a checkpoint records about adapters of LoRA. Such a checkpoint contains no other parameters.

#include <map>
#include <optional>
#include <string>

#include "apps/models/shape.h"
#include "apps/options/lora_option.h"
#include "checkpoint/file/manifest.h"
#include "sharding/state.h"

namespace aliquot {

struct SavedAdapters {
  LoraOption lora;
  std::string base;         // the path of the base: weights, or one checkpoint
  std::string base_digest;  // see digest_of_base()
};

std::map<std::string, Scalar> adapter_scalars(const SavedAdapters& adapters);
/// Returns nullopt if the checkpoint with these scalars contains a whole model. Throws UsageError, whose message begins
/// with `where`, if a scalar is missing, has the wrong type or is out of range.
std::optional<SavedAdapters> saved_adapters(const std::map<std::string, Scalar>& scalars, const std::string& where);
/// The same for the checkpoint at `path`, or for the newest one in the directory `path`. Also throws UsageError if the
/// tensors are not those of its adapters. Returns nullopt if there is no checkpoint with a valid manifest.
std::optional<SavedAdapters> find_saved_adapters(const std::string& path);

/// Throws UsageError if the parameters in a checkpoint are not pairs of matrices of the recorded rank, for the recorded
/// targets in each block.
void check_adapter_tensors(const Manifest& manifest, const SavedAdapters& adapters, const std::string& where);

/// Returns the shape of the model at `base`, to which adapters with the scalars `scalars` belong. The sizes are those
/// of the base. If the base records no other properties, they are those in the scalars. Returns nullopt if the base is
/// not a model of a supported type. Throws UsageError and CheckpointError if a file is malformed.
std::optional<ModelShape> shape_of_base(const std::string& base, const std::map<std::string, Scalar>& scalars);

/// Throws UsageError if `digest`, that of the weights at `path`, is not the one that the checkpoint `where` records.
void require_same_base(const SavedAdapters& adapters, const std::string& where, const std::string& path,
                       const std::string& digest);

/// Throws UsageError if `path` contains adapters in the format of PEFT in place of the weights of a model. `given` is
/// the name of the path in the message.
void refuse_adapters_of_peft(const std::string& path, const std::string& given);

}  // namespace aliquot
