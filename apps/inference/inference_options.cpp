#include "apps/inference/inference_options.h"

#include <filesystem>
#include <fmt/format.h>

#include "apps/checkpoints/commands.h"
#include "apps/console.h"
#include "apps/train/init_shape.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/error.h"
#include "sharding/launcher.h"

namespace aliquot {

TrainOptions inference_options() {
  TrainOptions options;
  options.engine.zero_stage = 3;
  options.frozen = true;
  options.quiet = true;
  return options;
}

void add_train_options(OptionTable& table, TrainOptions& options, std::initializer_list<std::string_view> names) {
  table.add(train_option_table(options), names);
}

void add_sharding(OptionTable& table, TrainOptions& options) {
  table.heading("Sharding");
  const OptionTable train = train_option_table(options);
  table.add(train, {"ranks", "zero-stage"});
  table.add(train, {"device", "world", "threads", "replicas", "pipeline"});
  table.add(train, {"gather", "offload-parameters"});
  table.add(train, "precision", "Type of parameters and matrix products; default: fp32 on hosts, bf16 on GPUs.");
  table.add(train, {"timeout"});
}

void set_weights(TrainOptions& options, const std::string& path, const std::string& given) {
  options.init = path;
  if (!is_weights_path(path) && !find_checkpoint(path)) {
    throw UsageError(
        fmt::format("{}: expected a folder with safetensors weights, or a checkpoint, found neither.", given));
  }
  const std::vector<std::string> remarks = read_init_shape(options);
  if (!options.file_shape && options.model.empty())
    throw UsageError(fmt::format("{}: nothing there defines the model: give --model with its config.json.", given));
  if (launched_rank() != 0) return;
  for (const std::string& remark : remarks) warn("{}", remark);
}

}  // namespace aliquot
