#include "apps/options/deepspeed.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/options/deepspeed_keys.h"
#include "apps/options/deepspeed_values.h"
#include "apps/options/settings_json.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr double kDeepspeedDefaultLr = 1e-3;  // default of DeepSpeed's optimizers and of warmup_max_lr
constexpr RealRange kRatio{0, 1};

class DeepspeedTranslator : private DeepspeedValues {
 public:
  DeepspeedTranslator(TrainOptions& options, DeepspeedFile file, std::optional<double> ratio_base_lr)
      : DeepspeedValues(std::move(file)),
        options_(options),
        table_(train_option_table(options)),
        ratio_base_lr_(ratio_base_lr) {}

  void translate_all() {
    for (const DeepspeedKey& key : deepspeed_keys()) translate_key(key);
    translate_batch();
    translate_precision();
    translate_types();
    translate_optimizer();
    translate_scheduler();
    translate_offload("offload_optimizer", "cpu_offload", "offload");
    translate_offload("offload_param", "cpu_offload_params", "offload-parameters");
    translate_quantization();
    translate_prefetch();
    translate_pipeline();
  }
  std::vector<std::string> ignored_keys() && { return std::move(file_.ignored_keys); }

 private:
  void set(const std::string& key, std::string_view option, const std::string& text) const {
    try {
      table_.find(option)->set(text);
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  /// Sets `option` to the number in the file, or to DeepSpeed's default `omitted` if the file does not have the key.
  /// Keeps Aliquot's default for "auto".
  void set_number(const std::string& key, std::string_view option, double omitted) const {
    if (is_auto(key)) return;
    const Json* value = find(key);
    set(key, option, value != nullptr ? number_text(*value) : exact_text(omitted));
  }

  void translate_key(const DeepspeedKey& key);
  void translate_batch();
  void translate_precision();
  void translate_loss_scaling();
  void translate_types();
  void translate_muon(const std::string& params);
  void translate_optimizer();
  void translate_betas(double first, double second);
  void translate_scheduler();
  void translate_rates(const std::string& type);
  void translate_offload(const std::string& block, const std::string& old_key, std::string_view option);
  void translate_quantization();
  void translate_prefetch();
  void translate_pipeline();
  void translate_partition(const std::string& key);

  TrainOptions& options_;
  OptionTable table_;
  std::optional<double> ratio_base_lr_;
};

void DeepspeedTranslator::translate_key(const DeepspeedKey& key) {
  const std::string path(key.path);
  const Json* value = find(path);
  if (key.handling == KeyHandling::kMapped) {
    if (value != nullptr) {
      set(path, key.what, number_text(*value));
    } else if (!is_auto(path) && !key.omitted.empty()) {
      set(path, key.what, std::string(key.omitted));
    }
  }
  if (key.handling == KeyHandling::kFixed && value != nullptr && number_text(*value) != key.what) {
    refuse(path, fmt::format("{} is not supported: leave the key out{}.", value_text(*value),
                             key.what == "null" ? "" : fmt::format(" or set it to {}", key.what)));
  }
}

void DeepspeedTranslator::translate_batch() {
  const std::string micro = "train_micro_batch_size_per_gpu";
  if (const Json* value = find(micro)) {
    set(micro, "micro-batch", number_text(*value));
  } else if (!is_auto(micro) && find("train_batch_size") != nullptr) {
    options_.micro_batch = 0;  // resolve() computes it from the global batch and the number of ranks
  }
}

void DeepspeedTranslator::translate_precision() {
  const std::string bf16 = file_.values.contains("bf16.enabled") ? "bf16.enabled" : "bfloat16.enabled";
  const bool in_bf16 = flag(bf16), in_fp16 = flag("fp16.enabled");
  if (in_bf16 && in_fp16) refuse("fp16.enabled", "bf16 is also enabled: enable only one of them.");
  if (in_bf16) set(bf16, "precision", "bf16");
  if (in_fp16) set("fp16.enabled", "precision", "fp16");
  if (!in_bf16 && !in_fp16 && !is_auto(bf16) && !is_auto("fp16.enabled")) options_.precision = DType::kFloat32;
  translate_loss_scaling();
}

void DeepspeedTranslator::translate_loss_scaling() {
  LossScaling& scaling = options_.engine.loss_scaling;
  scaling.loss_scale = real("fp16.loss_scale", scaling.loss_scale);
  scaling.initial_scale_power = static_cast<int>(integer("fp16.initial_scale_power", scaling.initial_scale_power));
  scaling.loss_scale_window = integer("fp16.loss_scale_window", scaling.loss_scale_window);
  scaling.hysteresis = static_cast<int>(integer("fp16.hysteresis", scaling.hysteresis));
  scaling.consecutive_hysteresis = flag("fp16.consecutive_hysteresis", scaling.consecutive_hysteresis);
  scaling.min_loss_scale = real("fp16.min_loss_scale", scaling.min_loss_scale);
  try {
    LossScaler checked(scaling);
  } catch (const UsageError& error) {
    refuse("fp16", error.what());
  }
}

/// Sets the types in which gradients are accumulated and reduced.
void DeepspeedTranslator::translate_types() {
  const auto translate_type = [this](const std::string& key, std::string_view option) {
    const std::string type = lower(word(key));
    if (type.empty()) return;
    if (type != "fp32" && type != "float32" && type != "float" && type != "bf16" && type != "bfloat16")
      refuse(key, fmt::format("'{}' is not supported: expected fp32 or bf16.", type));
    set(key, option, type.starts_with('b') ? "bf16" : "fp32");
  };
  translate_type("data_types.grad_accum_dtype", "gradients");
  translate_type("communication_data_type", "reduce-precision");
}

void DeepspeedTranslator::translate_betas(double first, double second) {
  const std::string key = "optimizer.params.betas";
  const Json* value = find(key);
  if (is_auto(key) || (value != nullptr && *value == Json{"auto", "auto"})) return;
  if (value == nullptr) return set(key, "betas", fmt::format("{},{}", first, second));
  if (!value->is_array() || value->size() != 2)
    refuse(key, fmt::format("invalid value {}: expected two numbers, as in [0.9, 0.999].", value_text(*value)));
  set(key, "betas", number_text((*value)[0]) + "," + number_text((*value)[1]));
}

/// Muon has separate learning rates for matrices (muon_lr) and for other parameters (adam_lr); `lr` is the default of
/// both.
void DeepspeedTranslator::translate_muon(const std::string& params) {
  const auto key_or_lr = [&](const char* key) { return params + (find(params + key) != nullptr ? key : "lr"); };
  set_number(key_or_lr("muon_lr"), "muon-lr", 0.02);
  set_number(key_or_lr("adam_lr"), "lr", 3e-4);
  set_number(params + "momentum", "momentum", 0.95);
  set_number(params + "eps", "eps", 1e-10);
  set_number(params + "weight_decay", "weight-decay", 0);
  translate_betas(0.9, 0.95);
}

/// Without the block `optimizer`, DeepSpeed uses an optimizer that the program creates, so Aliquot's options apply.
void DeepspeedTranslator::translate_optimizer() {
  const std::string params = "optimizer.params.", type = lower(word("optimizer.type"));
  if (type.empty()) {
    if (has("optimizer") && !is_auto("optimizer.type"))
      refuse("optimizer.type", "the key is missing: expected Adam, AdamW, Lion, SGD or Muon.");
    return;
  }
  if (type != "adam" && type != "adamw" && type != "lion" && type != "sgd" && type != "muon")
    refuse("optimizer.type",
           fmt::format("'{}' is not supported: expected Adam, AdamW, Lion, SGD or Muon.", word("optimizer.type")));
  const bool decoupled = flag(params + "adam_w_mode", true);  // DeepSpeed's Adam is AdamW by default
  set("optimizer.type", "optimizer", type == "adam" && decoupled ? "adamw" : type);
  if (type == "muon") return translate_muon(params);
  set_number(params + "lr", "lr", kDeepspeedDefaultLr);
  set_number(params + "eps", "eps", 1e-8);
  const bool is_torch_adamw = flag(params + "torch_adam") && decoupled;  // PyTorch's default weight decay is 0.01
  set_number(params + "weight_decay", "weight-decay", is_torch_adamw && type.starts_with("adam") ? 0.01 : 0);
  if (type == "sgd") set_number(params + "momentum", "momentum", 0);
  if (type == "sgd") options_.optimizer.nesterov = flag(params + "nesterov");
  translate_betas(0.9, type == "lion" ? 0.99 : 0.999);
}

void DeepspeedTranslator::translate_scheduler() {
  const std::string type = word("scheduler.type");
  if (type.empty() && has("scheduler") && !is_auto("scheduler.type"))
    refuse("scheduler.type", "the key is missing: expected WarmupLR, WarmupDecayLR or WarmupCosineLR.");
  if (is_auto("scheduler.type")) return;
  set("scheduler", "schedule", "constant");
  if (type.empty()) return;
  if (type != "WarmupLR" && type != "WarmupDecayLR" && type != "WarmupCosineLR")
    refuse("scheduler.type",
           fmt::format("'{}' is not supported: expected WarmupLR, WarmupDecayLR or WarmupCosineLR.", type));
  const std::string params = "scheduler.params.";
  set_number(params + "warmup_num_steps", "warmup", 1000);
  const std::string shape = word(params + "warmup_type");
  if (!is_auto(params + "warmup_type")) set(params + "warmup_type", "warmup-shape", shape.empty() ? "log" : shape);
  if (type != "WarmupLR") {
    if (!file_.values.contains(params + "total_num_steps"))
      refuse(params + "total_num_steps", "the key is missing: " + type + " needs it.");
    set_number(params + "total_num_steps", "steps", 0);
    set("scheduler.type", "schedule", type == "WarmupDecayLR" ? "linear" : "cosine");
  }
  translate_rates(type);
}

/// Sets the learning rates at the start and the end of the warm-up, and the minimum learning rate.
void DeepspeedTranslator::translate_rates(const std::string& type) {
  const std::string params = "scheduler.params.";
  if (type == "WarmupCosineLR") {  // its parameters are fractions of the optimizer's learning rate
    const double rate = ratio_base_lr_.value_or(*options_.optimizer.lr);
    options_.warmup_from = real(params + "warmup_min_ratio", 0, kRatio) * rate;
    options_.min_lr = real(params + "cos_min_ratio", 1e-4, kRatio) * rate;
    return;
  }
  set_number(params + "warmup_max_lr", "lr", kDeepspeedDefaultLr);
  if (options_.optimizer.kind == OptimizerKind::kMuon)
    set_number(params + "warmup_max_lr", "muon-lr", kDeepspeedDefaultLr);  // the learning-rate schedule scales both
  set_number(params + "warmup_min_lr", "warmup-from", 0);
  options_.min_lr = type == "WarmupDecayLR" ? options_.warmup_from : 0;
}

void DeepspeedTranslator::translate_offload(const std::string& block, const std::string& old_key,
                                            std::string_view option) {
  const std::string key = "zero_optimization." + block, old_path = "zero_optimization." + old_key;
  std::string device = word(key + ".device");
  if (device.empty() && flag(old_path)) device = "cpu";
  if (device.empty() || device == "none") return;
  if (device == "cpu") return set(key, option, "host");
  if (device != "nvme")
    refuse(key + ".device", fmt::format("'{}' is not supported: expected none, cpu or nvme.", device));
  const std::string directory = word(key + ".nvme_path");
  if (directory.empty()) refuse(key + ".nvme_path", "the key is missing: the device nvme needs a directory.");
  set(key, option, "disk:" + directory);
}

void DeepspeedTranslator::translate_quantization() {
  options_.engine.quantize_weights = flag("zero_optimization.zero_quantized_weights");
  options_.engine.quantize_gradients = flag("zero_optimization.zero_quantized_gradients");
}

/// DeepSpeed counts elements to prefetch and Aliquot counts units, so only 0 (no prefetch) can be translated.
void DeepspeedTranslator::translate_prefetch() {
  for (const std::string key :
       {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size"}) {
    if (find(key) == nullptr) continue;
    if (real(key, 1) == 0) {
      options_.engine.prefetch = 0;
    } else {
      file_.ignored_keys.push_back(key);
    }
  }
}

/// Two keys set the number of pipeline stages, and two set the partition method. One key of each pair has the name of
/// an argument of DeepSpeed's PipelineModule, because a program may pass the block `pipeline` to PipelineModule.
void DeepspeedTranslator::translate_pipeline() {
  const std::string stages = "pipeline.stages", argument = "pipeline.num_stages";
  if (const Json* value = find(stages)) set(stages, "pipeline", number_text(*value));
  if (const Json* value = find(argument)) {
    const Json* other = find(stages);
    if (other != nullptr && number_text(*other) != number_text(*value))
      refuse(argument, fmt::format("{} contradicts {} {}: leave one of them out.", value_text(*value), stages,
                                   value_text(*other)));
    set(argument, "pipeline", number_text(*value));
  }
  translate_partition("pipeline.partition");
  translate_partition("pipeline.partition_method");
  // The value of the key is the number of layers that DeepSpeed recomputes as one group. The default, 0, disables
  // recomputation. Aliquot recomputes each block separately. Results do not depend on the size of the group.
  if (const std::string interval = "pipeline.activation_checkpoint_interval"; integer(interval, 0) > 0)
    set(interval, "recompute", "block");
}

/// The default pipeline cut of Aliquot balances the pipeline stages, as the method "parameters" does. Results do not
/// depend on the pipeline cut, so other methods are ignored.
void DeepspeedTranslator::translate_partition(const std::string& key) {
  const std::string method = lower(word(key));
  if (method.empty() || method == "best" || method == "parameters") return;
  if (method != "uniform" && !method.starts_with("type:"))
    refuse(key, fmt::format("'{}' is not supported: expected best, parameters, uniform or type:REGEX.", word(key)));
  file_.ignored_keys.push_back(key);
}

/// Sets `options` from the file, and returns the keys that have no effect in Aliquot. `ratio_base_lr` is the learning
/// rate by which the ratios in the file are multiplied. By default, it is the learning rate in the file.
std::vector<std::string> translate(TrainOptions& options, const DeepspeedFile& file,
                                   std::optional<double> ratio_base_lr = {}) {
  DeepspeedTranslator translation(options, file, ratio_base_lr);
  translation.translate_all();
  return std::move(translation).ignored_keys();
}

std::vector<GivenOption> with_name(const std::vector<GivenOption>& given, std::string_view name) {
  std::vector<GivenOption> found;
  std::ranges::copy_if(given, std::back_inserter(found), [&](const GivenOption& one) { return one.name == name; });
  return found;
}

}  // namespace

std::vector<std::string> apply_deepspeed_file(TrainOptions& options, const std::string& path) {
  return translate(options, read_deepspeed_file(path));
}

// Setting some options reads a file. The file may be a pipe, which can be read only once. Therefore each option of the
// command line except --lr is set only once. The values of the DeepSpeed file are applied twice.
std::vector<std::string> parse_train_arguments(TrainOptions& options, const std::vector<std::string>& arguments) {
  const OptionTable table = train_option_table(options);
  std::vector<GivenOption> given = read_arguments(table, arguments);
  remove_replaced_by_mesh(given);
  std::vector<std::string> remarks;
  if (const auto named = with_name(given, "deepspeed"); !named.empty()) {
    const DeepspeedFile file = read_deepspeed_file(named.back().value);
    TrainOptions trial;  // computes only the final learning rate, by which the ratios are multiplied
    translate(trial, file);
    set_options(train_option_table(trial), with_name(given, "lr"));
    const std::vector<std::string> ignored_keys = translate(options, file, trial.optimizer.lr);
    if (!ignored_keys.empty())
      remarks.push_back(fmt::format("{}: these keys have no effect in Aliquot: {}", named.back().value,
                                    fmt::join(ignored_keys, ", ")));
  }
  set_options(table, given);
  apply_mesh(options.mesh, given, options.engine);
  if (options.mesh.given) options.ranks = options.mesh.given->rank_count();
  std::ranges::move(ineffective_options(options, given), std::back_inserter(remarks));
  return remarks;
}

}  // namespace aliquot
