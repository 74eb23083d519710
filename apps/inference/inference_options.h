#pragma once
// The options that `aliquot eval` and `aliquot sample` share: which weights to load, and how to shard them.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options/train_options.h"
#include "engine/options/option_table.h"

namespace aliquot {

/// Returns the options of a run that loads weights and does not train. Its default ZeRO stage is 3.
TrainOptions inference_options();

/// Adds the options of `aliquot train` with these names. `options` must outlive the table.
void add_train_options(OptionTable& table, TrainOptions& options, std::initializer_list<std::string_view> names);

/// Adds the options that select ranks, sharding, precision and device.
void add_sharding(OptionTable& table, TrainOptions& options);

/// Adds --base.
void add_base(OptionTable& table, std::string& base);

/// Sets `options` to load the weights at `path`: a folder or a file of Hugging Face weights, a checkpoint, or a
/// directory of checkpoints, of which the newest is loaded. If the checkpoint contains only adapters, they belong to
/// the weights at `base` or, if that is empty, at the path that it records. Prints warnings on rank 0. `given` is the
/// name of the path in messages. Throws UsageError if there are no weights or if no file defines the model, and
/// CheckpointError if the checkpoint is damaged.
void set_weights(TrainOptions& options, const std::string& path, const std::string& given, const std::string& base);

}  // namespace aliquot
