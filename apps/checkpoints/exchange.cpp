// export and import: weights to other programs, and from them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/checkpoints/commands.h"
#include "apps/models/hugging_face.h"
#include "apps/options/values.h"
#include "apps/say.h"
#include "checkpoint/export_weights.h"
#include "checkpoint/find.h"
#include "checkpoint/weights.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";

std::vector<NamedShape> parameters_of(const Manifest& manifest) {
  constexpr std::string_view kParameters = "parameters/";
  std::vector<NamedShape> parameters;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.path.starts_with(kParameters))
      parameters.emplace_back(tensor.path.substr(kParameters.size()), tensor.shape);
  }
  return parameters;
}

/// A number that stands in no tensor, as the run that saved the checkpoint wrote it down.
std::optional<int64_t> saved(const Manifest& manifest, const std::string& name) {
  const auto found = manifest.scalars.find(name);
  if (found == manifest.scalars.end() || !std::holds_alternative<int64_t>(found->second)) return std::nullopt;
  return std::get<int64_t>(found->second);
}

/// What was asked for, else what the run that saved it wrote down, else the preset's.
int64_t heads_of(const Manifest& manifest, const ModelShape& shape, std::optional<int64_t> asked) {
  if (!asked) asked = saved(manifest, "heads");
  if (const ModelShape* preset = preset_like(shape); !asked && preset != nullptr) asked = preset->heads;
  if (!asked) {
    throw UsageError(
        fmt::format("the checkpoint does not say how many heads its {} layers of width {} have: give --heads N.",
                    shape.layers, shape.width));
  }
  if (*asked < 1 || shape.width % *asked != 0)
    throw UsageError(fmt::format("--heads {} does not divide the width {}.", *asked, shape.width));
  return *asked;
}

/// Fills in what no tensor shows.
void complete(ModelShape& shape, const Manifest& manifest, const CheckpointOptions& options) {
  const int64_t key_width = shape.kv_heads;
  shape.heads = heads_of(manifest, shape, options.heads);
  shape.kv_heads = shape.heads;
  if (shape.family != ModelFamily::kLlama) return;
  if (key_width % shape.head_width() != 0) {
    throw UsageError(fmt::format("--heads {} makes heads of {} elements, and keys have {}: give another number.",
                                 shape.heads, shape.head_width(), key_width));
  }
  shape.kv_heads = key_width / shape.head_width();
  const ModelShape* preset = preset_like(shape);
  shape.context = saved(manifest, "context").value_or(preset == nullptr ? 8192 : preset->context);
  shape.rotary_factor = saved(manifest, "rotary_factor").value_or(preset == nullptr ? 1 : preset->rotary_factor);
}

/// The text of config.json; empty where the model is none that transformers knows.
std::string config_of(const Manifest& manifest, const CheckpointOptions& options) {
  auto shape = shape_of(parameters_of(manifest));
  if (!shape) return {};
  complete(*shape, manifest, options);
  return config_text(*shape, name(parse_dtype(options.dtype)));
}

void require_out(const CheckpointOptions& options, const char* verb) {
  if (options.out.empty()) throw UsageError(fmt::format("checkpoint {} needs --out DIR: where to write.", verb));
}

}  // namespace

int export_command(const CheckpointOptions& options) {
  require_out(options, "export");
  const std::filesystem::path out = options.out;
  for (const char* name : {kWeightsFile, kConfigFile}) {
    std::error_code unseen;  // what cannot be seen cannot be written either, and that is told then
    if (std::filesystem::exists(out / name, unseen))
      throw UsageError(fmt::format("{} is there already: remove it, or write elsewhere", (out / name).string()));
  }
  const CheckpointReader reader = open_verified(checkpoint_at(options.places[0]), show_verification);
  const std::string config = config_of(reader.manifest(), options);
  const int64_t written = export_weights(reader, out, kWeightsFile, parse_dtype(options.dtype));
  say("{}: {} bytes\n", (out / kWeightsFile).string(), written);
  if (config.empty()) {
    say("no {}: the parameters are not those of a model that it describes\n", kConfigFile);
    return 0;
  }
  write_whole_file(out, kConfigFile, config);
  say("{}\n", (out / kConfigFile).string());
  return 0;
}

int import_command(const CheckpointOptions& options) {
  require_out(options, "import");
  for (const FoundCheckpoint& found : list_checkpoints(options.out)) {
    if (found.step == 0)
      throw UsageError(fmt::format("{} is there already: remove it, or write elsewhere.", found.path.string()));
  }
  ImportReport report;
  WorldOptions world;
  world.device = DeviceChoice::kHost;
  world.threads_per_rank = 1;
  World::threads(
      1, [&](World& alone) { report = import_weights(alone.communicator(), options.places[0], options.out); }, world);
  say("{}: {} tensors\n", report.path.string(), report.tensor_count);
  if (!report.left_out.empty()) say("left out, being no parameters: {}\n", fmt::join(report.left_out, ", "));
  if (!report.rounded.empty()) say("rounded from float64: {}\n", fmt::join(report.rounded, ", "));
  return 0;
}

}  // namespace aliquot
