// The subcommands export and import of `aliquot checkpoint`, which exchange weights with other programs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/export_adapters.h"
#include "apps/checkpoints/saved_adapters.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "apps/data/whole_file.h"
#include "apps/models/hugging_face/config.h"
#include "apps/models/hugging_face/weights.h"
#include "apps/text/tokenizer_file.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/weights/export_weights.h"
#include "checkpoint/weights/weights.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

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

std::optional<ParameterExtents> extents_of_weights(const std::filesystem::path& path, EqualHead equal_head) {
  const WeightFiles weights = WeightFiles::open(FileSystem::system(), path, equal_head);
  std::vector<NamedShape> parameters;
  for (const WeightTensor& tensor : weights.tensors()) parameters.emplace_back(tensor.name, tensor.entry->shape);
  return extents_of(parameters);
}

/// Whether a config.json with the shape `read` describes weights from which extents_of() derives `extents`.
bool describes(const ModelShape& read, const ParameterExtents& extents) {
  const ModelShape& found = extents.shape;
  const bool same_size = read.family == found.family && read.layers == found.layers && read.width == found.width &&
                         read.hidden == found.hidden && read.vocabulary == found.vocabulary && read.tied == found.tied;
  const bool same_heads = read.query_width() == extents.query_width && read.key_width() == extents.key_width;
  const bool same_kind =
      read.qkv_bias == found.qkv_bias && read.output_bias == found.output_bias && read.qk_norm == found.qk_norm;
  return same_size && same_heads && same_kind;
}

std::string_view head_difference(const ModelShape& read, const ModelShape& found) {
  if (read.tied == found.tied) return "";
  return found.tied ? " and no lm_head.weight" : " and an lm_head.weight that is not the embedding";
}

/// Reads the config.json next to the weights at `path`, and returns its model shape. Returns nullopt if there is no
/// config.json, or if the weights are not those of a supported model type.
std::optional<ModelShape> shape_of_config(const std::filesystem::path& path) {
  const auto config = find_config_near(path);
  auto extents = extents_of_weights(path, EqualHead::kLeaveOut);
  if (!config || !extents) return {};
  const ModelConfig read = read_model_config(*config);
  if (!read.shape.tied) extents = extents_of_weights(path, EqualHead::kKeep);
  if (!describes(read.shape, *extents)) {
    throw UsageError(fmt::format(
        "{} does not describe the weights next to it, which have {} layers of width {}{}: use the "
        "config.json of these weights.",
        config->string(), extents->shape.layers, extents->shape.width, head_difference(read.shape, extents->shape)));
  }
  for (const std::string& remark : read.remarks) warn("{}", remark);
  return read.shape;
}

void require_out(const CheckpointOptions& options, const char* subcommand) {
  if (options.out.empty())
    throw UsageError(fmt::format("checkpoint {} needs --out DIR, the directory to write to.", subcommand));
}

constexpr std::string_view kLlama3BeginToken = "<|begin_of_text|>";

/// Returns the tokenizer of the weights in `folder`, or null if there is none that aliquot supports.
std::unique_ptr<Tokenizer> find_supported_tokenizer(const std::filesystem::path& folder) {
  const auto file = find_tokenizer(folder);
  if (!file) return nullptr;
  try {
    return Tokenizer::read(*file);
  } catch (const UsageError&) {
    return nullptr;
  }
}

/// Returns the end-of-text token. Returns nullopt if there is none in the vocabulary of the config.json `config`.
std::optional<int32_t> end_token(const Tokenizer& tokenizer, const nlohmann::ordered_json& config) {
  const auto name = end_of_text_token(tokenizer);
  if (!name || *tokenizer.find(*name) >= config.at("vocab_size").get<int64_t>()) return std::nullopt;
  return tokenizer.find(*name);
}

}  // namespace

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr int64_t kLargestFileMib = 256;
  const auto found = find_tokenizer(from);
  std::error_code ignored;  // if exists() fails, writing the file fails too and reports the error
  if (!found || std::filesystem::exists(to / kTokenizerFile, ignored)) return;
  write_file_atomically(to, kTokenizerFile, read_whole_file(*found, kLargestFileMib));
  write_stdout("{}\n", (to / kTokenizerFile).string());
}

std::string with_end_token(const std::string& config, const std::filesystem::path& folder) {
  auto json = nlohmann::ordered_json::parse(config);
  if (json.contains("eos_token_id") && !json["eos_token_id"].is_null()) return config;
  const auto tokenizer = find_supported_tokenizer(folder);
  const auto end = tokenizer ? end_token(*tokenizer, json) : std::nullopt;
  if (!end) return config;
  json["eos_token_id"] = *end;
  return json.dump(2) + "\n";
}

std::string with_tokens_of_tokenizer(const std::string& config, const std::filesystem::path& folder) {
  const auto tokenizer = find_supported_tokenizer(folder);
  if (!tokenizer) return config;
  auto json = nlohmann::ordered_json::parse(config);
  const auto end = end_token(*tokenizer, json);
  json["eos_token_id"] = end ? nlohmann::ordered_json(*end) : nlohmann::ordered_json();
  // GPT-2 begins a text with its end-of-text token. In a config.json for Llama, the begin is Llama 3's or null.
  if (json.at("model_type") == "gpt2")
    json["bos_token_id"] = json["eos_token_id"];
  else if (const auto begin = tokenizer->find(kLlama3BeginToken); !begin || json.at("bos_token_id") != *begin)
    json["bos_token_id"] = nullptr;
  return json.dump(2) + "\n";
}

int export_command(const CheckpointOptions& options) {
  require_out(options, "export");
  const std::filesystem::path out = options.out;
  for (const char* name : {kWeightsFile, kConfigFile, kAdapterFile, kAdapterConfigFile}) {
    std::error_code ignored;  // if exists() fails, writing the file fails too and reports the error
    if (std::filesystem::exists(out / name, ignored))
      throw UsageError(
          fmt::format("--out: {} already exists: remove it, or choose another directory.", (out / name).string()));
  }
  const CheckpointReader reader = open_verified(require_checkpoint(options.paths[0]), print_verification_progress);
  if (const auto adapters = saved_adapters(reader.manifest().scalars, options.paths[0]))
    return export_adapters(options, reader, *adapters);
  if (!options.lora.empty() || !options.base.empty()) {
    throw UsageError(fmt::format("{} contains all weights of a model: leave out --lora and --base.", options.paths[0]));
  }
  const std::string config = config_of(reader.manifest(), options.paths[0], options);
  const int64_t written = export_weights(reader, out, kWeightsFile, options.dtype);
  write_stdout("{}: {} bytes\n", (out / kWeightsFile).string(), written);
  copy_tokenizer(options.paths[0], out);
  if (config.empty()) {
    write_stdout("no {} was written: the parameters are not those of GPT-2, Llama, Mistral, Qwen2 or Qwen3\n",
                 kConfigFile);
    return 0;
  }
  write_file_atomically(out, kConfigFile, with_tokens_of_tokenizer(config, out));
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
  refuse_adapters_of_peft(options.paths[0], options.paths[0]);
  const auto shape = shape_of_config(options.paths[0]);
  if (!extents_of_weights(options.paths[0], EqualHead::kLeaveOut)) {
    warn(
        "the parameters are not those of GPT-2, Llama, Mistral, Qwen2 or Qwen3: programs that use the library can load "
        "the checkpoint, and aliquot train cannot.");
  }
  const auto scalars = shape ? shape_scalars(*shape) : std::map<std::string, Scalar>();
  const EqualHead equal_head = shape && !shape->tied ? EqualHead::kKeep : EqualHead::kLeaveOut;
  ImportReport report;
  WorldOptions world;
  world.device = DeviceChoice::kHost;
  world.threads_per_rank = 1;
  World::threads(
      1,
      [&](World& alone) {
        report = import_weights(alone.communicator(), options.paths[0], options.out, scalars, equal_head);
      },
      world);
  write_stdout("{}: {} tensors\n", report.path.string(), report.tensor_count);
  copy_tokenizer(options.paths[0], options.out);
  if (!report.skipped_tensors.empty())
    write_stdout("skipped tensors that are not parameters: {}\n", fmt::join(report.skipped_tensors, ", "));
  if (!report.rounded.empty())
    write_stdout("tensors rounded from float64 to float32: {}\n", fmt::join(report.rounded, ", "));
  return 0;
}

}  // namespace aliquot
