#pragma once
// The options that select a model, shared by several subcommands.

#include <optional>
#include <string>
#include <vector>

#include "apps/models/cuda/fused_attention_tensors.h"
#include "apps/models/shape.h"
#include "apps/models/tensor_part.h"
#include "apps/options/arguments.h"
#include "apps/options/lora_option.h"
#include "engine/options.h"

namespace aliquot {

inline constexpr const char* kDefaultModel = "gpt2-nano";

/// A preset or a config.json, with changes to its shape.
struct ShapeOptions {
  std::string model;  // empty: the model of --init if it defines one, otherwise kDefaultModel
  std::optional<int64_t> layers, width, heads, kv_heads, hidden, context, vocabulary;
  std::optional<bool> tied;
  bool sequence_parallel = true;  // see TensorGroup
  AttentionKernels attention = AttentionKernels::kOwn;
  LoraOption lora;

  /// The shape from a file instead of a preset: the config.json of --model, or the model of --init.
  std::optional<ModelShape> file_shape;
  int64_t file_head_width = 0;       // head_dim of the file of --model, which the other options keep; 0: width / heads
  std::vector<std::string> remarks;  // warnings about the file of --model

  /// Whether any of these options was given.
  bool has_shape_options() const;
};

/// Sets --model to the name of a preset, or to the path of a config.json or of its folder, and reads that file. A
/// text that is not the name of a preset is a path if it contains a slash, ends in .json, or names an existing file or
/// folder. Throws UsageError.
void set_model(ShapeOptions& options, const std::string& model);

/// Adds the options to `table`. `options` must outlive the table and must not move.
void add_shape_options(OptionTable& table, ShapeOptions& options);
/// Adds --sequence-parallel.
void add_sequence_parallel(OptionTable& table, ShapeOptions& options);
/// Adds --attention.
void add_attention(OptionTable& table, ShapeOptions& options);
/// Returns the tensor group of a rank.
TensorGroup tensor_group(const ShapeOptions& options, const EngineOptions& engine, int rank);

/// The shape of the preset or of the file, with the changes of --layers and the other options. Throws UsageError if the
/// result is inconsistent.
ModelShape model_shape(const ShapeOptions& options);

/// The name of the preset; "gpt2" or "llama" if the shape is from a file.
std::string model_name(const ShapeOptions& options);

/// Throws UsageError, naming the flag, both values and `where`, if an option that was given contradicts `shape`.
/// `where` is the file that defines `shape`, and `names` are the names of the fields in that file. With
/// `allow_more_layers`, the options may have more layers than `shape`.
void check_consistent(const ShapeOptions& given, const ModelShape& shape, const std::string& where,
                      const ShapeNames& names, bool allow_more_layers);

}  // namespace aliquot
