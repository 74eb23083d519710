#include "apps/inference/eval_options.h"

#include <fmt/format.h>

#include "apps/inference/inference_options.h"
#include "apps/options/arguments.h"
#include "kernels/system/error.h"

namespace aliquot {

EvalOptions::EvalOptions() : run(inference_options()) {}

OptionTable eval_option_table(EvalOptions& o) {
  OptionTable t;
  const OptionTable train = train_option_table(o.run);
  t.heading("Data");
  t.text("data", "FILE", o.run.data, "Tokens to evaluate, in a format that aliquot train reads.");
  t.count("sequences", o.sequences, {0, int64_t{1} << 62}, "Evaluate only the first N sequences; 0: all.");
  t.add(train, "sequence", "Tokens per sequence; default: the model's context, but at most 1024.");
  t.add(train, {"micro-batch"});
  add_sharding(t, o.run);
  t.add(train, {"tensor", "sequence-parallel"});
  t.heading("Model");
  t.add(train, "model", "The model, if the weights have no config.json: the name of a preset, or a config.json.");
  add_base(t, o.base);
  add_config(t, o.config);
  return t;
}

EvalOptions parse_eval_arguments(const std::vector<std::string>& arguments) {
  EvalOptions options;
  const OptionTable table = eval_option_table(options);
  std::vector<std::string> flags = arguments;
  const std::vector<std::string> paths = extract_positional(flags, table);
  parse_arguments(table, flags);
  if (paths.size() != 1) {
    throw UsageError(fmt::format(
        "eval needs one path, of a checkpoint or of a folder with Hugging Face weights, got {}.", paths.size()));
  }
  options.path = paths[0];
  if (options.run.data.empty()) throw UsageError("--data is missing: name a file of tokens.");
  return options;
}

}  // namespace aliquot
