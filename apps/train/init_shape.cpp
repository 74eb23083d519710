#include "apps/train/init_shape.h"

#include <filesystem>
#include <fmt/format.h>
#include <system_error>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_adapters.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/models/hugging_face/config.h"
#include "apps/train/checkpoints/with_init_name.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

constexpr ShapeNames kNamesOfCheckpoints{"layers",  "width",      "heads",        "kv-heads",  "hidden",
                                         "context", "vocabulary", "norm epsilon", "RoPE theta"};

void set_file_shape(TrainOptions& options, const ModelShape& shape, const std::string& where, const ShapeNames& names) {
  check_consistent(options, shape, where, names, options.allow_missing);
  options.file_shape = shape;
  options.file_head_width = 0;
}

std::string options_define_model(const TrainOptions& options, const std::string& why) {
  return fmt::format("--init {}: {}, so the options define the model: {}.", options.init, why,
                     numbers_text(model_shape(options)));
}

/// Throws UsageError if `path` ends in .safetensors and is neither a safetensors file nor a directory.
void refuse_unreadable_weights(const std::filesystem::path& path) {
  std::error_code error;
  if (path.extension() != ".safetensors" || std::filesystem::is_directory(path, error)) return;
  with_init_name([&] { return SafetensorsFile::open(FileSystem::system(), path); });
}

/// Sets the shape that the checkpoint of options.adapters records together with its base. Returns whether there is one.
bool set_recorded_shape(TrainOptions& options) {
  if (options.adapters.empty()) return false;
  const auto shape = shape_of_base(options.init, read_manifest(options.adapters).scalars);
  if (!shape || shape->heads == 0) return false;
  set_file_shape(options, *shape, options.adapters, kNamesOfCheckpoints);
  return true;
}

std::vector<std::string> read_config_shape(TrainOptions& options) {
  const auto path = find_config_near(options.init);
  if (!path) {
    refuse_unreadable_weights(options.init);  // before the warning, which only matters for a file that can be read
    if (set_recorded_shape(options)) return {};
    return {options_define_model(options, "found no config.json next to the weights")};
  }
  const ModelConfig config = read_model_config(*path);
  set_file_shape(options, config.shape, path->string(), config.names);
  return config.remarks;
}

void refuse_adapters(const std::optional<SavedAdapters>& adapters, const std::string& given) {
  if (!adapters) return;
  throw UsageError(
      fmt::format("{}: the checkpoint contains only adapters of {}: write whole weights with aliquot checkpoint export "
                  "--lora merged.",
                  given, adapters->base));
}

std::vector<std::string> read_checkpoint_shape(TrainOptions& options, const std::filesystem::path& path) {
  const std::string where = path.string();
  const Manifest manifest =
      parse_manifest(read_manifest_text(FileSystem::system(), path), (path / kManifestFile).string());
  refuse_adapters(saved_adapters(manifest.scalars, where), "--init " + options.init);
  if (!records_shape(manifest.scalars) && set_recorded_shape(options)) return {};
  const auto shape = saved_shape(manifest, where);
  if (!shape) return {};  // loading the tensors will report the error
  if (!records_shape(manifest.scalars))
    return {options_define_model(options, "the checkpoint does not record the number of heads")};
  set_file_shape(options, *shape, where, kNamesOfCheckpoints);
  return {};
}

}  // namespace

void check_resumed_adapters(const TrainOptions& options) {
  if (options.resume == "none") return;
  const std::string path = options.resume == "auto" ? options.checkpoint_dir : options.resume;
  refuse_adapters_of_peft(path, "--resume " + path);
  const auto found = find_checkpoint(path);
  if (!found) return;
  std::optional<Manifest> manifest;
  try {
    manifest = read_manifest(*found);
  } catch (const CheckpointError&) {
    return;  // loading reports the error, or uses an older checkpoint
  }
  require_same_lora(options, saved_adapters(manifest->scalars, found->string()));
}

void require_same_lora(const TrainOptions& options, const std::optional<SavedAdapters>& saved) {
  const std::string given = lora_text(options.lora), of_checkpoint = saved ? lora_text(saved->lora) : "";
  const ModelFamily family = model_shape(options).family;
  if (saved && options.lora.rank > 0 && lora_of(saved->lora, family) == lora_of(options.lora, family)) return;
  if (!saved && options.lora.rank == 0) return;
  throw UsageError(fmt::format("--resume {}: the checkpoint {}, and this run has {}: {}.", options.resume,
                               saved ? "was saved with --lora " + of_checkpoint : "has no adapters",
                               given.empty() ? "no --lora" : "--lora " + given,
                               saved ? "give the option of the saved run" : "start with --init"));
}

std::vector<std::string> read_init_shape(TrainOptions& options) {
  if (options.init.empty()) {
    if (options.lora.rank == 0) return {};
    return {
        "--lora without --init trains adapters of random weights, which stay random: give --init with the weights "
        "of a trained model."};
  }
  refuse_adapters_of_peft(options.init, "--init " + options.init);
  if (is_weights_path(options.init)) return read_config_shape(options);
  const auto path = find_checkpoint(options.init);
  return path ? read_checkpoint_shape(options, *path) : std::vector<std::string>{};
}

}  // namespace aliquot
