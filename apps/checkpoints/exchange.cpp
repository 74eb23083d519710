// The subcommands export and import of `aliquot checkpoint`, which exchange weights with other programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "apps/models/hugging_face/config.h"
#include "apps/models/hugging_face/weights.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/weights/export_weights.h"
#include "checkpoint/weights/weights.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";

/// Returns the text of a config.json for the model in a checkpoint. Returns "" if its type is not supported.
std::string config_of(const Manifest& manifest, const std::string& where, const CheckpointOptions& options) {
  const auto shape = saved_shape(manifest, where, options.heads);
  if (!shape) return {};
  if (shape->heads == 0) {
    throw UsageError(
        fmt::format("{}: the checkpoint does not record the number of heads ({} layers of width {}): give --heads N.",
                    where, shape->layers, shape->width));
  }
  if (!records_shape(manifest.scalars)) {
    warn("{} does not record the norm epsilon{}: assuming {}, and writing these values to {}.", where,
         shape->family == ModelFamily::kLlama ? ", the RoPE parameters or the context length" : "",
         numbers_text(*shape), kConfigFile);
  }
  return config_text(*shape, name(options.dtype));
}

/// Reads the config.json next to the weights at `path`, and returns its model shape as scalars. Returns an empty map if
/// there is no config.json, or if the weights are not those of a supported model type.
std::map<std::string, Scalar> scalars_of_config(const std::filesystem::path& path) {
  const auto config = find_config_near(path);
  if (!config) return {};
  const WeightFiles weights = WeightFiles::open(FileSystem::system(), path);
  std::vector<NamedShape> parameters;
  for (const WeightTensor& tensor : weights.tensors()) parameters.emplace_back(tensor.name, tensor.entry->shape);
  const auto extents = shape_of(parameters);
  if (!extents) return {};
  const ModelConfig read = read_model_config(*config);
  const ModelShape& shape = read.shape;
  const bool same_size = shape.family == extents->family && shape.layers == extents->layers &&
                         shape.width == extents->width && shape.hidden == extents->hidden &&
                         shape.vocabulary == extents->vocabulary && shape.tied == extents->tied;
  const bool same_heads = shape.family == ModelFamily::kGpt2 ||
                          (shape.query_width() == extents->own_head_width && shape.key_width() == extents->kv_heads);
  const bool same_kind = shape.qkv_bias == extents->qkv_bias && shape.output_bias == extents->output_bias &&
                         shape.qk_norm == extents->qk_norm;
  if (!same_size || !same_heads || !same_kind) {
    throw UsageError(
        fmt::format("{} does not describe the weights next to it, which have {} layers of width {}: use the "
                    "config.json of these weights.",
                    config->string(), extents->layers, extents->width));
  }
  for (const std::string& remark : read.remarks) warn("{}", remark);
  return shape_scalars(shape);
}

void require_out(const CheckpointOptions& options, const char* subcommand) {
  if (options.out.empty())
    throw UsageError(fmt::format("checkpoint {} needs --out DIR, the directory to write to.", subcommand));
}

}  // namespace

int export_command(const CheckpointOptions& options) {
  require_out(options, "export");
  const std::filesystem::path out = options.out;
  for (const char* name : {kWeightsFile, kConfigFile}) {
    std::error_code ignored;  // if exists() fails, writing the file fails too and reports the error
    if (std::filesystem::exists(out / name, ignored))
      throw UsageError(
          fmt::format("--out: {} already exists: remove it, or choose another directory.", (out / name).string()));
  }
  const CheckpointReader reader = open_verified(require_checkpoint(options.paths[0]), print_verification_progress);
  const std::string config = config_of(reader.manifest(), options.paths[0], options);
  const int64_t written = export_weights(reader, out, kWeightsFile, options.dtype);
  write_stdout("{}: {} bytes\n", (out / kWeightsFile).string(), written);
  if (config.empty()) {
    write_stdout("no {} was written: the parameters are not those of GPT-2, Llama, Mistral, Qwen2 or Qwen3\n",
                 kConfigFile);
    return 0;
  }
  write_file_atomically(out, kConfigFile, config);
  write_stdout("{}\n", (out / kConfigFile).string());
  return 0;
}

int import_command(const CheckpointOptions& options) {
  require_out(options, "import");
  for (const FoundCheckpoint& found : list_checkpoints(options.out)) {
    if (found.step == 0)
      throw UsageError(
          fmt::format("--out: {} already exists: remove it, or choose another directory.", found.path.string()));
  }
  const auto scalars = scalars_of_config(options.paths[0]);
  ImportReport report;
  WorldOptions world;
  world.device = DeviceChoice::kHost;
  world.threads_per_rank = 1;
  World::threads(
      1, [&](World& alone) { report = import_weights(alone.communicator(), options.paths[0], options.out, scalars); },
      world);
  write_stdout("{}: {} tensors\n", report.path.string(), report.tensor_count);
  if (!report.skipped_tensors.empty())
    write_stdout("skipped tensors that are not parameters: {}\n", fmt::join(report.skipped_tensors, ", "));
  if (!report.rounded.empty())
    write_stdout("tensors rounded from float64 to float32: {}\n", fmt::join(report.rounded, ", "));
  return 0;
}

}  // namespace aliquot
