#include "apps/inference/inference_options.h"

#include <filesystem>
#include <fmt/format.h>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_adapters.h"
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
  table.add(train, {"products", "timeout"});
}

void add_base(OptionTable& table, std::string& base) {
  table.text("base", "DIR", base,
             "The weights of a checkpoint that contains only adapters (see train --lora); default: the path that it "
             "records.");
}

namespace {

bool has_weights(const std::string& path) { return is_weights_path(path) || find_checkpoint(path).has_value(); }

/// Sets the options that load the adapters at `path`.
void set_adapters(TrainOptions& options, const SavedAdapters& adapters, const std::string& path,
                  const std::string& given) {
  refuse_adapters_of_peft(options.init, "--base " + options.init);
  if (!has_weights(options.init)) {
    throw UsageError(fmt::format(
        "{} contains only adapters of {}, and there are no weights: name them with --base DIR.", given, options.init));
  }
  options.lora = adapters.lora;
  options.adapters = require_checkpoint(path).string();
}

}  // namespace

void set_weights(TrainOptions& options, const std::string& path, const std::string& given, const std::string& base) {
  refuse_adapters_of_peft(path, given);
  if (!has_weights(path)) {
    throw UsageError(
        fmt::format("{}: expected a folder with safetensors weights, or a checkpoint, found neither.", given));
  }
  const auto adapters = is_weights_path(path) ? std::nullopt : find_saved_adapters(path);
  options.init = !adapters ? path : base.empty() ? adapters->base : base;
  if (adapters) set_adapters(options, *adapters, path, given);
  if (!adapters && !base.empty())
    throw UsageError(fmt::format("--base {}: {} has all weights of a model: leave --base out.", base, given));
  const std::vector<std::string> remarks = read_init_shape(options);
  if (!options.file_shape && options.model.empty())
    throw UsageError(fmt::format("{}: nothing there defines the model: give --model with its config.json.", given));
  if (launched_rank() != 0) return;
  for (const std::string& remark : remarks) warn("{}", remark);
}

}  // namespace aliquot
