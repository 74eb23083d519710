#include "apps/train/train_init.h"

#include <fmt/format.h>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/models/hugging_face/config.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights/weights.h"

namespace aliquot {
namespace {

constexpr ShapeNames kNamesOfCheckpoints{"layers",  "width",      "heads",        "kv-heads",  "hidden",
                                         "context", "vocabulary", "norm epsilon", "RoPE theta"};

void define(TrainOptions& options, const ModelShape& shape, const std::string& where, const ShapeNames& names) {
  refuse_contradiction(options, shape, where, names, options.allow_missing);
  options.described = shape;
}

std::string options_define_model(const TrainOptions& options, const std::string& why) {
  return fmt::format("--init {}: {}; the options define the model: {}.", options.init, why,
                     numbers_text(model_shape(options)));
}

std::vector<std::string> take_config(TrainOptions& options) {
  const auto path = config_beside(options.init);
  if (!path) return {options_define_model(options, "there is no config.json beside the weights")};
  const ModelConfig config = read_model_config(*path);
  define(options, config.shape, path->string(), config.names);
  return config.remarks;
}

std::vector<std::string> take_checkpoint(TrainOptions& options, const std::filesystem::path& path) {
  const std::string where = path.string();
  const Manifest manifest =
      parse_manifest(read_manifest_text(FileSystem::system(), path), (path / kManifestFile).string());
  const auto shape = saved_shape(manifest, where);
  if (!shape) return {};  // reading its tensors will fail with an error
  if (!records_shape(manifest.scalars))
    return {options_define_model(options, "the checkpoint does not record its model's heads")};
  define(options, *shape, where, kNamesOfCheckpoints);
  return {};
}

}  // namespace

std::vector<std::string> take_model_of_init(TrainOptions& options) {
  if (options.init.empty()) return {};
  if (is_weights(options.init)) return take_config(options);
  const auto path = find_checkpoint_at(options.init);
  return path ? take_checkpoint(options, *path) : std::vector<std::string>{};
}

}  // namespace aliquot
